"""Adam over a model that is in half precision as a whole."""

from __future__ import annotations

import torch


class MasterAdam(torch.optim.Optimizer):
    """Adam on fp32 copies of half-precision parameters, as NVIDIA's apex kept them at its level O2.

    fused: one kernel for all parameters (apex's FusedAdam), else several a parameter.
    """

    def __init__(self, params: object, lr: float = 1e-3, fused: bool = False):
        super().__init__(params, {"lr": lr, "fused": fused})  # type: ignore[arg-type]

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        params = [p for p in group["params"] if p.grad is not None]
        for p in params:
            if not self.state[p]:
                zeros = [torch.zeros_like(p, dtype=torch.float32) for _ in range(2)]
                self.state[p] = {
                    "master": p.float(),
                    "mean": zeros[0],
                    "square": zeros[1],
                    "step": torch.zeros((), device=p.device),
                }
        names = ("master", "mean", "square", "step")
        master, mean, square, step = ([self.state[p][name] for p in params] for name in names)
        grads = [p.grad.float() for p in params]  # type: ignore[union-attr]
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        torch._foreach_mul_(grads, (1.0 / (total + 1e-6)).clamp(max=1.0))
        if group["fused"]:
            torch._foreach_add_(step, 1)
            torch._fused_adam_(
                master,
                grads,
                mean,
                square,
                [],
                step,
                lr=group["lr"],
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=1e-6,
                amsgrad=False,
                maximize=False,
            )
        else:
            for g, m, s, w in zip(grads, mean, square, master, strict=True):
                m.lerp_(g, 0.1)
                s.mul_(0.999).addcmul_(g, g, value=1e-3)
                w.addcdiv_(m, s.sqrt().add_(1e-6), value=-group["lr"])
        torch._foreach_copy_(params, master)
