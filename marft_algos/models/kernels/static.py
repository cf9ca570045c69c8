"""A step of decoding without a shape or a branch that depends on how far it has got."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from marft_algos.models.kernels.blocks import Block, BlockModel, attend


@dataclass(slots=True)
class StaticStep:
    """A step of decoding without a shape or a branch that depends on how far it has got.

    Keys and values are attended to in their whole capacity, under a mask; places are tensors that the step moves on
    itself. So it can be captured in a CUDA graph (``marft_algos.engines.captured``), or compiled without breaks.
    """

    decoder: BlockModel
    blocks: list[Block]
    angles: tuple[Tensor, Tensor]
    last_norm: Tensor
    policy_of_row: Tensor | None
    mask: Tensor
    """[b, 1, 1, capacity], -inf at pads and at what is not decoded yet."""
    position: Tensor
    """[b, 1] of the last token."""
    column: Tensor
    """[1], where the next token's keys go."""

    def __call__(self, token: Tensor) -> Tensor:
        """Returns the final hidden states [b, d] after one more token [b] a row."""
        decoder, rows = self.decoder, self.policy_of_row
        self.position.add_(1)
        self.mask.index_fill_(3, self.column, 0.0)
        rotary = (self.angles[0][self.position].unsqueeze(-2), self.angles[1][self.position].unsqueeze(-2))
        x = decoder.module.embed_tokens(token).to(decoder.dtype)
        for block, module in zip(self.blocks, decoder.module.layers, strict=True):
            heads = decoder.rotated(block, x, (len(token), 1), rotary, rows)
            block.kv.index_copy_(2, self.column, heads[:, decoder.heads :])
            attended = attend(heads[:, : decoder.heads], block.kv, self.mask).reshape(len(x), -1)
            x = decoder.feed_forward(block, module, attended, x, rows)
        self.column.add_(1)
        return decoder.norm(x, self.last_norm)

    def compact(self, rows: Tensor) -> None:
        """Drops all rows but these; a graph of the step is of no use afterwards."""
        for block in self.blocks:
            block.kv[: len(rows)] = block.kv[rows]
            block.kv = block.kv[: len(rows)]
        self.position, self.mask = self.position[rows], self.mask[rows]
        self.policy_of_row = None if self.policy_of_row is None else self.policy_of_row[rows]
