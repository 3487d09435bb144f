"""Trees over recurrent layers with a stash of a few vectors per node (mode ``stash``)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from sglang_ddtree.engine.recurrent.cache_copies import checkpoints_of
from sglang_ddtree.engine.recurrent.memory import shape_of, snapshot_bytes
from sglang_ddtree.ops.gdn_tree import (
    RecurrentLayer,
    Stash,
    TreeRecurrenceMetadata,
    commit,
    verify,
)

if TYPE_CHECKING:
    from sglang.srt.configs.mamba_utils import Mamba2CacheParams
    from sglang.srt.layers.attention.linear.gdn_backend import GDNAttnBackend
    from sglang.srt.layers.radix_linear_attention import RadixLinearAttention
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    from sglang_ddtree.engine.verify_input import TreeVerifyInput
    from sglang_ddtree.tree import Acceptance

logger = logging.getLogger(__name__)


class StashedLayers:
    """All recurrent layers of the target during a step: ``begin``, ``verify`` each, ``commit``.

    Verification reads the committed states of SGLang's pool and writes the stash; only ``commit``
    writes states. Stash and paths sit at fixed addresses, as captured graphs need them to.
    """

    def __init__(
        self,
        backend: GDNAttnBackend,
        params: Mamba2CacheParams,
        width: int,
        dtype: torch.dtype,
    ) -> None:
        self._backend = backend
        self._pool = backend.req_to_token_pool
        self._width = width
        self._shape = shape_of(params)
        cache = self._pool.mamba_pool.mamba_cache
        self._states, self._windows = cache.temporal, cache.conv[0]
        device, max_bs = self._states.device, self._pool.size
        self._stash = Stash.allocate(
            self._shape, (len(self._states), max_bs, width), dtype=dtype, device=device
        )
        self._allocate_paths(max_bs, device)
        logger.info(
            "DDTREE: recurrent layers of up to %d requests at once; trees of %d nodes are stashed "
            "in %.1f MB, a state after every node would take %.1f MB",
            max_bs,
            width,
            self._stash.nbytes / 1e6,
            max_bs * snapshot_bytes(params, width) / 1e6,
        )

    def _allocate_paths(self, max_bs: int, device: torch.device) -> None:
        """What ``begin`` fills; chains until then."""
        chains = TreeRecurrenceMetadata.chain(max_bs, self._width, self._shape.kernel_size, device)
        self._paths = TreeRecurrenceMetadata(chains.ancestors.clone(), chains.taps.clone())

    def follow_weights(self) -> None:
        """Nothing is kept of the layers' weights."""

    def begin(self, verify_input: TreeVerifyInput) -> None:
        """Take the paths of a step's trees, which all layers share."""
        assert verify_input.tree is not None
        paths = TreeRecurrenceMetadata.of(verify_input.tree, self._shape.kernel_size)
        mine = self._metadata(len(paths.ancestors))
        mine.ancestors.copy_(paths.ancestors)
        mine.taps.copy_(paths.taps)

    def verify(
        self,
        layer: RadixLinearAttention,
        mixed_qkv: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
    ) -> torch.Tensor:
        """Outputs ``[1, bs * N, H, dv]`` of one layer, every node from its own path.

        Args:
            mixed_qkv: ``[bs * N, C]``, before the convolution.
            a, b: ``[bs * N, H]``.
        """
        mixed_qkv, a, b = (x.unflatten(0, (-1, self._width)) for x in (mixed_qkv, a, b))
        bs, index = len(mixed_qkv), self._pool.mamba_map[layer.layer_id]
        slots = self._slots(bs)
        out, stash = verify(
            RecurrentLayer.gdn(layer),
            mixed_qkv,
            a,
            b,
            self._states[index][slots],
            self._windows[index][slots],
            self._metadata(bs),
        )
        self._stash.layer(index).requests(bs).store(stash)
        return out.flatten(0, 1).unsqueeze(0)

    def commit(self, batch: ScheduleBatch, accepted: Acceptance, prefix_lens: torch.Tensor) -> None:
        """Make the accepted path's states the requests' own, and copy those the cache asks for.

        Layer by layer, so that temporary memory is one layer's. What is not asked for goes to
        slot 0, which SGLang keeps for padding.
        """
        bs = len(accepted.leaf)
        slots, metadata = self._slots(bs), self._metadata(bs)
        writes = [(slots, accepted.leaf)]
        checkpoints = checkpoints_of(batch, accepted, prefix_lens)
        if checkpoints is not None:
            targets = self._backend._translate_mamba_indices(checkpoints.slots).long()
            targets = torch.where(checkpoints.nodes >= 0, targets, 0).clamp(min=0)
            writes.append((targets, checkpoints.nodes))
        for index, (states, windows) in enumerate(zip(self._states, self._windows, strict=True)):
            stash = self._stash.layer(index).requests(bs)
            before = states[slots], windows[slots]
            for target, node in writes:
                state, window = commit(stash, *before, metadata, node)
                states.index_copy_(0, target, state)
                windows.index_copy_(0, target, window)

    def _metadata(self, bs: int) -> TreeRecurrenceMetadata:
        return TreeRecurrenceMetadata(self._paths.ancestors[:bs], self._paths.taps[:bs])

    def _slots(self, bs: int) -> torch.Tensor:
        """int64 ``[bs]``, physical slots of this forward's requests; padding has slot 0."""
        return self._backend.forward_metadata.mamba_cache_indices[:bs].long().clamp(min=0)
