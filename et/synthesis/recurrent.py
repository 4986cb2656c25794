"""The learned model: a gated recurrent network over events, which is also told what followed alike events before.

An event's three tokens are predicted one after another: what it is from the network's state, its value from that and
what it is, its parents from that and both (Cho et al., EMNLP 2014, for the unit). Beside each the token that `History`
points to is given, so that the network learns when to copy.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from et.synthesis.conditions import CONDITIONS, Wanted
from et.synthesis.history import REACHES, History
from et.synthesis.situation import OF_SITUATION, OF_VALUES, Situation
from et.synthesis.tokens import Words

Floats = NDArray[np.float64]
Int32 = NDArray[np.int32]

HIDDEN, EMBEDDED, HEAD = 96, 16, 64
_CHUNK = 128
_AT_ONCE = 8
_MOST_RATE, _MOST_NORM, _DROPPED = 4e-3, 1.0, 0.1
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
        widths = [HIDDEN + followers + self.of_situation + more for more in (0, 2 * EMBEDDED + OF_VALUES, 3 * EMBEDDED)]
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(width, HEAD), nn.ReLU(), nn.Linear(HEAD, size))
            for width, size in zip(widths, sizes, strict=True)
        )

    def state(
        self, before: torch.Tensor, followers: torch.Tensor, told: torch.Tensor, hidden: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """What the network makes of all before an event: features [batch, events, ...], and the unit's state."""
        copies = self._embedded(followers)
        given = torch.cat([self._embedded(before), copies, told], -1)
        found, hidden = self.unit(self.drop(torch.relu(self.into(given))), hidden)
        return torch.cat([self.drop(found), copies, told[..., -self.of_situation :]], -1), hidden

    def logits(self, field: int, *features: torch.Tensor, beside: Sequence[torch.Tensor]) -> torch.Tensor:
        """Of a field's tokens.

        Args:
            field: 0 to 2.
            features: as `state` gives them; of field 1 also what Situation.of_values says of the event.
            beside: of field 1 what the event is, and the value of the last such; of field 2 both and the parents of the
                last such.
        """
        embedded = [self.embed[number](tokens) for number, tokens in enumerate(beside)]
        found: torch.Tensor = self.heads[field](torch.cat([*features, *embedded], -1))
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
        found = []
        for field in range(3):
            given = [features, part["values"]] if field == 1 else [features]
            logits = self.network.logits(field, *given, beside=beside[field])
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
    """A stream as far as it has come; see et.synthesis.sampling.Model.

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
        beside = [self._embedded((*event, *last))] if field else []
        values = [np.array(self._situation.of_values(event[0]))] if field == 1 else []
        inner = np.maximum(self._linear(f"heads.{field}.0", np.concatenate([self._features, *values, *beside])), 0)
        logits = self._linear(f"heads.{field}.2", inner)
        chances = np.exp(logits - logits.max())
        return np.asarray(chances / chances.sum())

    def _last(self, field: int, event: Sequence[int]) -> int:
        return self._history.value_of(event[0]) if field == 1 else self._history.parents_of(event[0], event[1])

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
    followers, last, told, values = [], [], [], []
    conditions = wanted.conditions()
    for event in rows.tolist():
        followers.append(history.followers())
        last.append([history.value_of(event[0]), history.parents_of(event[0], event[1])])
        told.append([*conditions, *situation.numbers()])
        values.append(situation.of_values(event[0]))
        history.push(event)
        situation.push(event[0], event[1])
    return {
        "before": np.concatenate([np.zeros((1, 3), np.int32), rows[:-1]]),
        "target": rows,
        "followers": np.array(followers),
        "last": np.array(last),
        "told": np.array(told, np.float32),
        "values": np.array(values, np.float32),
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
