"""The learned model: a gated recurrent network over events, which is also told what followed alike events before.

An event's three tokens are predicted one after another: what it is from the network's state, its value from that and
what it is, its parents from that and both (Cho et al., EMNLP 2014, for the unit). Beside each the token that `History`
points to is given, so that the network learns when to copy.

Classes have numbers as they come first, which say little. So a value is also weighed by what is told of its class, with
the same weights for all: how many are left, how large it is against the others, if it is what History points to.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from et.synthesis.conditions import CONDITIONS, Wanted
from et.synthesis.history import COPIES, REACHES, History
from et.synthesis.situation import OF_CLASS, OF_SITUATION, Situation
from et.synthesis.tokens import VALUES, Words

Floats = NDArray[np.float64]
Int32 = NDArray[np.int32]

HIDDEN, EMBEDDED, HEAD, WEIGHED = 96, 16, 64, 24
_CHUNK = 128
_AT_ONCE = 8
_MOST_RATE, _MOST_NORM, _DROPPED, _DROPPED_OF_CLASSES = 4e-3, 1.0, 0.1, 0.3
_UNLIKELY = 1e-3
"""Of all probability, what is shared out among all tokens alike: nothing is impossible."""


class Network(nn.Module):
    """Maps what is known before an event to three logits."""

    def __init__(self, sizes: Sequence[int], operations: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.of_situation = OF_SITUATION + operations
        self.embed = nn.ModuleList(nn.Embedding(size, EMBEDDED) for size in sizes)
        followers = 3 * len(REACHES) * EMBEDDED
        self.into = nn.Linear(3 * EMBEDDED + followers + CONDITIONS + self.of_situation, HIDDEN)
        self.unit = nn.GRU(HIDDEN, HIDDEN, batch_first=True)
        self.drop = nn.Dropout(_DROPPED)
        of_values = 2 * EMBEDDED + VALUES * OF_CLASS
        widths = [HIDDEN + followers + self.of_situation + more for more in (0, of_values, 3 * EMBEDDED)]
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, HEAD), nn.ReLU(), nn.Linear(HEAD, size))
            for width, size in zip(widths, sizes, strict=True)
        )
        self.drop_classes = nn.Dropout(_DROPPED_OF_CLASSES)
        self.of_event, self.of_class = nn.Linear(HEAD, WEIGHED), nn.Linear(OF_CLASS + COPIES, WEIGHED)
        self.weight = nn.Linear(WEIGHED, 1)

    def state(
        self, before: torch.Tensor, followers: torch.Tensor, told: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the network makes of all before an event: features [batch, events, ...], and the unit's state."""
        copies = self._embedded(followers)
        given = torch.cat([self._embedded(before), copies, told], -1)
        found, hidden = self.unit(self.drop(torch.relu(self.into(given))), hidden)
        return torch.cat([self.drop(found), copies, told[..., -self.of_situation :]], -1), hidden

    def logits(
        self, field: int, features: torch.Tensor, beside: Sequence[torch.Tensor], classes: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Of a field's tokens.

        Args:
            field: 0 to 2.
            features: as `state` gives them.
            beside: of field 1 what the event is, and the value of the last such; of field 2 both and the parents of the
                last such.
            classes: of field 1, [..., VALUES, OF_CLASS + COPIES]: what Situation.of_values says, and whether it is
                which of History.values_of.
        """
        given = [features, *(self.embed[number](tokens) for number, tokens in enumerate(beside))]
        if classes is not None:
            given.append(self.drop_classes(classes[..., :OF_CLASS].flatten(-2)))
        first, bend, last = self.heads[field]  # type: ignore[misc]
        hidden = bend(first(torch.cat(given, -1)))
        found: torch.Tensor = last(hidden)
        if classes is not None:
            weighed = torch.relu(self.of_event(hidden)[..., None, :] + self.of_class(classes))
            found = found + self.weight(weighed)[..., 0]
        return found

    def _embedded(self, tokens: torch.Tensor) -> torch.Tensor:
        parts = [self.embed[at % 3](tokens[..., at]) for at in range(tokens.shape[-1])]
        return torch.cat(parts, -1)


class Recurrent:
    """A network that is trained, or is to be.

    Args:
        words: tokens of the streams that it learns.
        seed: of all that is drawn while it learns.
    """

    def __init__(self, words: Words, seed: int) -> None:
        torch.manual_seed(seed)
        self._seed = seed
        self._words = words
        self.network = Network(words.sizes, len(words.operations))

    def learn(
        self,
        streams: Sequence[Int32],
        wanted: Sequence[Wanted],
        epochs: int,
        told: Callable[[int, float], None] = lambda _, __: None,
    ) -> None:
        """Train on streams, int32[events, 3] each, and on what each of them was asked to be.

        Args:
            streams: as et.synthesis.tokens.encode makes them.
            wanted: of each.
            epochs: how often each stream is seen.
            told: called with the epoch and the mean bits of an event in it.
        """
        torch.set_num_threads(1)  # sums in the same order everywhere; and more are slower here
        generator = np.random.default_rng(self._seed)
        examples = [_example(self._words, rows, each) for rows, each in zip(streams, wanted, strict=True)]
        by_length = sorted(range(len(examples)), key=lambda at: len(streams[at]))
        batches = [by_length[begin : begin + _AT_ONCE] for begin in range(0, len(by_length), _AT_ONCE)]
        steps = epochs * len(batches)
        optimizer = torch.optim.AdamW(self.network.parameters(), _MOST_RATE, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _MOST_RATE, total_steps=max(steps, 2))
        self.network.train()
        for epoch in range(epochs):
            bits = events = 0.0
            for number in generator.permutation(len(batches)).tolist():
                batch = _batch([examples[at] for at in batches[number]])
                found, many = self._learn_batch(batch, optimizer)
                bits, events = bits + found, events + many
                schedule.step()
            told(epoch, bits / events)
        self.network.eval()

    def _learn_batch(self, batch: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer) -> tuple[float, float]:
        hidden, bits, events = None, 0.0, 0.0
        for begin in range(0, batch["target"].shape[1], _CHUNK):
            part = {name: values[:, begin : begin + _CHUNK] for name, values in batch.items()}
            if not bool(part["mask"].any()):
                break
            losses, hidden = self._losses(part, hidden)
            hidden = hidden.detach()
            many = part["mask"].sum()
            loss = losses.sum() / many
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.network.parameters(), _MOST_NORM)
            optimizer.step()
            bits, events = bits + float(losses.detach().sum()) / np.log(2), events + float(many)
        return bits, events

    def _losses(self, part: dict[str, torch.Tensor], hidden: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Nats of each field of each event, [3]; the parents and value of an end cost nothing."""
        features, hidden = self.network.state(part["before"], part["followers"], part["told"], hidden)
        target, last = part["target"], part["last"]
        beside: list[list[torch.Tensor]] = [
            [],
            [target[..., 0], last[..., 0]],
            [target[..., 0], target[..., 1], last[..., 1]],
        ]
        copied = nn.functional.one_hot(part["copied"], VALUES).transpose(-1, -2)
        classes = torch.cat([part["classes"], copied], -1)
        found = []
        for field in range(3):
            logits = self.network.logits(field, features, beside[field], classes if field == 1 else None)
            chance = torch.softmax(logits, -1).gather(-1, target[..., field : field + 1])[..., 0]
            chance = (1 - _UNLIKELY) * chance + _UNLIKELY / self.network.sizes[field]
            found.append(-(torch.log(chance) * part["mask"]).sum())
        return torch.stack(found), hidden

    def bits(self, rows: Int32, wanted: Wanted) -> Floats:
        """float64[3]: bits of all tokens of a stream, by field."""
        with torch.no_grad():
            losses, _ = self._losses(_batch([_example(self._words, rows, wanted)]), None)
        return np.asarray(losses.double().numpy() / np.log(2))

    def start(self, wanted: Wanted) -> "RecurrentState":
        """Before the first event of a stream that is to be made."""
        return RecurrentState(self.network, self._words, wanted)


class RecurrentState:
    """A stream as far as it has come; see et.synthesis.sampling.StreamModel.

    The network once more, in NumPy: one event after another, PyTorch takes ten times as long for its calls.
    """

    def __init__(self, network: Network, words: Words, wanted: Wanted) -> None:
        self._weights = {name: values.numpy().astype(np.float64) for name, values in network.state_dict().items()}
        self._conditions = wanted.conditions()
        self._situation = Situation(words, wanted)
        self._history = History()
        self._hidden = np.zeros(HIDDEN)
        self._features = self._next((0, 0, 0))

    def _next(self, before: Sequence[int]) -> Floats:
        """Features of the next event, as Network.state makes them."""
        told = [*self._conditions, *self._situation.numbers()]
        copies = self._embedded(self._history.followers())
        given = self._linear("into", np.concatenate([self._embedded(before), copies, told]))
        into = self._weights["unit.weight_ih_l0"] @ np.maximum(given, 0) + self._weights["unit.bias_ih_l0"]
        own = self._weights["unit.weight_hh_l0"] @ self._hidden + self._weights["unit.bias_hh_l0"]
        reset, update = (_sigmoid(into[part] + own[part]) for part in (slice(0, HIDDEN), slice(HIDDEN, 2 * HIDDEN)))
        new = np.tanh(into[2 * HIDDEN :] + reset * own[2 * HIDDEN :])
        self._hidden = (1 - update) * new + update * self._hidden
        return np.concatenate([self._hidden, copies, told[CONDITIONS:]])

    def _embedded(self, tokens: Sequence[int]) -> Floats:
        return np.concatenate([self._weights[f"embed.{at % 3}.weight"][token] for at, token in enumerate(tokens)])

    def _linear(self, name: str, given: Floats) -> Floats:
        return np.asarray(self._weights[f"{name}.weight"] @ given + self._weights[f"{name}.bias"])

    def probabilities(self, field: int, event: Sequence[int]) -> Floats:
        """Of the tokens of the next event's next field, after those of its fields that stand already."""
        last = [] if field == 0 else [self._last(field, event)]
        given = [self._features, *([self._embedded((*event, *last))] if field else [])]
        classes = self._situation.of_values(event[0]) if field == 1 else None
        if classes is not None:
            given.append(classes.reshape(-1).astype(np.float64))
        inner = np.maximum(self._linear(f"heads.{field}.0", np.concatenate(given)), 0)
        logits = self._linear(f"heads.{field}.2", inner)
        if classes is not None:
            logits = logits + self._weights_of(classes, inner, self._history.values_of(event[0]))
        chances = np.exp(logits - logits.max())
        return np.asarray(chances / chances.sum())

    def _weights_of(self, classes: NDArray[np.float32], inner: Floats, copied: Sequence[int]) -> Floats:
        """Of each class, as Network.logits weighs them."""
        is_copied = np.zeros((VALUES, COPIES))
        is_copied[copied, range(COPIES)] = 1
        told = np.concatenate([classes, is_copied], -1) @ self._weights["of_class.weight"].T
        weighed = np.maximum(told + self._weights["of_class.bias"] + self._linear("of_event", inner), 0)
        return np.asarray(weighed @ self._weights["weight.weight"][0] + self._weights["weight.bias"])

    def _last(self, field: int, event: Sequence[int]) -> int:
        return self._history.value_of(event[0]) if field == 1 else self._history.parents_of(event[0], event[1])

    def copy(self) -> "RecurrentState":
        """One that goes on by itself."""
        found = copy.copy(self)
        vars(found).update(_situation=self._situation.copy(), _history=self._history.copy())
        return found

    def push(self, event: Sequence[int]) -> None:
        """Take in the next event."""
        self._history.push(event)
        self._situation.push(event[0], event[1])
        self._features = self._next(event)


def _sigmoid(values: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-values)))


def _example(words: Words, rows: Int32, wanted: Wanted) -> dict[str, NDArray[Any]]:
    """What a network is given and is to find at each event of a stream."""
    history, situation = History(), Situation(words, wanted)
    followers, last, told, classes, copied = [], [], [], [], []
    conditions = wanted.conditions()
    for event in rows.tolist():
        followers.append(history.followers())
        last.append([history.value_of(event[0]), history.parents_of(event[0], event[1])])
        told.append([*conditions, *situation.numbers()])
        classes.append(situation.of_values(event[0]))
        copied.append(history.values_of(event[0]))
        history.push(event)
        situation.push(event[0], event[1])
    return {
        "before": np.concatenate([np.zeros((1, 3), np.int32), rows[:-1]]),
        "target": rows,
        "followers": np.array(followers),
        "last": np.array(last),
        "told": np.array(told, np.float32),
        "classes": np.stack(classes),
        "copied": np.array(copied),
        "mask": np.ones(len(rows), np.float32),
    }


def _batch(examples: Sequence[dict[str, NDArray[Any]]]) -> dict[str, torch.Tensor]:
    """Examples side by side, filled up with 0."""
    longest = max(len(example["mask"]) for example in examples)
    found = {}
    for name in examples[0]:
        padded = [
            np.pad(example[name], [(0, longest - len(example[name])), *[(0, 0)] * (example[name].ndim - 1)])
            for example in examples
        ]
        values = torch.from_numpy(np.stack(padded))
        found[name] = values if values.is_floating_point() else values.long()
    return found
