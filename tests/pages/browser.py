"""What a page shows in a headless browser: plots, names, headings, contrast, width."""

from playwright.sync_api import Page

_LIGHT = """
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const part = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
"""
CONTRAST = (
    "() => {"
    + _LIGHT
    + """
  const found = [];
  for (const element of document.querySelectorAll("h1,h2,p,a,button,dt,dd,th,td,caption,summary,figcaption,svg text")) {
    if (!element.textContent.trim() || !element.checkVisibility()) continue;
    const style = getComputedStyle(element), isSvg = element instanceof SVGElement;
    if (isSvg && element.closest(".icicle")) continue;
    const [one, two] = [light(rgba(isSvg ? style.fill : style.color)), light(ground(element))].sort((a, b) => b - a);
    found.push([(one + 0.05) / (two + 0.05), element.tagName + ": " + element.textContent.slice(0, 40)]);
  }
  return found;
}"""
)
"""Of each visible text its contrast with the ground, by WCAG 2.1, and what it is."""

CONTRAST_OF = (
    "(colours) => {"
    + _LIGHT
    + """
  return colours.map((colour) => {
    const [one, two] = [light(rgba(colour)), light(ground(document.querySelector(".plot")))].sort((a, b) => b - a);
    return [(one + 0.05) / (two + 0.05), colour];
  });
}"""
)
"""Of colours their contrast with the ground of plots."""

NAMELESS = """() => [...document.querySelectorAll("a,button,summary,[role=region],[role=img],img,nav")]
  .filter((each) => each.checkVisibility() && !each.closest(".modebar"))
  .filter((each) => !(each.getAttribute("aria-label") || each.alt || each.textContent).trim())
  .map((each) => each.outerHTML.slice(0, 90))"""
"""Controls, regions and pictures without a name."""

COVERED = """() => [...document.querySelectorAll("div.plot")].flatMap((plot) => {
  const bar = plot.querySelector(".modebar")?.getBoundingClientRect();
  return bar ? [...plot.querySelectorAll("svg text, .legend")].filter((each) => {
    const at = each.getBoundingClientRect();
    return at.width && at.left < bar.right && bar.left < at.right && at.top < bar.bottom && bar.top < at.bottom;
  }).map((each) => each.textContent.slice(0, 40)) : [];
})"""
"""Texts and legends of plots below Plotly's tool bar."""


def draw_all(page: Page) -> int:
    """Scroll past every plot until it is drawn; how many there are."""
    plots = page.evaluate("document.querySelectorAll('div.plot').length")
    for number in range(plots):
        page.evaluate("n => document.querySelectorAll('div.plot')[n].scrollIntoView()", number)
        page.wait_for_function("n => document.querySelectorAll('div.plot')[n].querySelector('.main-svg')", arg=number)
    return int(plots)
