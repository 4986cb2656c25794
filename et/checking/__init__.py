"""Infrastructure of trace checks: their input, their findings, and fixes. The checks themselves are in `et.checks`."""
