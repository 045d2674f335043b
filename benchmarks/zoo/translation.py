"""GNMT v2 as NVIDIA's DeepLearningExamples and Lambda train it: recurrent encoder and decoder with Bahdanau attention.

Written from its description (PyTorch/Translation/GNMT/README.md of NVIDIA/DeepLearningExamples): WMT16 English to German, a
vocabulary of 31,800 word pieces, four layers of 1,024 units on either side. In mixed precision the whole model runs in fp16
(apex O2), with Adam on fp32 copies.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.zoo.entry import EXAMPLES, LAMBDA, Entry, Part, Reading, Unscored
from benchmarks.zoo.master_adam import MasterAdam
from gpuwise.job import Job

VOCABULARY = 31_800  # "Size of vocabulary" of the logs
# Sentences have at most 50 word pieces and are batched with others of about their length, in five buckets ten wide. In the log
# pytorch/results/2xA40/PyTorch_gnmt_FP16 (lambdal/deeplearning-benchmark) a step takes 27, 45, 63 or 82 word pieces a pair of
# sentences (seconds a step times word pieces a second, over 880 pairs), and 82 steps make an epoch. How many are of each bucket
# follows from its mean seconds a step (0.432) and mean word pieces a second (97,600 a device). A batch is padded to the longest
# sentence of its bucket; sentences shorter than ten do not fill one batch.
BUCKETS = ((19, 27.0, 27), (29, 45.0, 24), (39, 63.0, 20), (50, 82.0, 11))  # padded length, word pieces a pair, steps of 82
PAIRS, LOGGED = 148_120, 1760  # "Pairs after" filtering; of one step of that log
WORD_PIECES = 47.0  # of a pair, on average
PADDED = 30


class Attention(nn.Module):
    """Normalised additive attention (Bahdanau et al. 2015): queries (n, q, width), keys (n, k, width) -> (n, q, width)."""

    def __init__(self, width: int):
        super().__init__()
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.weight, self.bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.scale = nn.Parameter(torch.full((1,), width**-0.5))

    def forward(self, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        n, q, width = queries.shape
        shape = (n, q, keys.shape[1], width)
        joined = self.query(queries).unsqueeze(2).expand(shape) + self.key(keys).unsqueeze(1).expand(shape)
        weight = self.weight / self.weight.norm() * self.scale
        scores = torch.tanh(joined + self.bias).matmul(weight)
        scores = scores.masked_fill(mask.unsqueeze(1), -65504.0)
        return torch.bmm(F.softmax(scores, dim=-1), keys)


class Gnmt(nn.Module):
    """source (n, s), target (n, t) -> logits (t × n, vocabulary). Time comes first inside, as cuDNN has it.

    The first layer reads sentences both ways. From the third layer on, inputs are added to outputs. What the decoder's first
    layer attends to is concatenated to the inputs of all others.
    """

    def __init__(self, width: int = 1024, layers: int = 4, dropout: float = 0.2, vocabulary: int = VOCABULARY):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.both_ways = nn.LSTM(width, width, bidirectional=True)
        self.encoder = nn.ModuleList(nn.LSTM(width if i else 2 * width, width) for i in range(layers - 1))
        self.first = nn.LSTM(width, width)
        self.attention = Attention(width)
        self.decoder = nn.ModuleList(nn.LSTM(2 * width, width) for _ in range(layers - 1))
        self.classifier = nn.Linear(width, vocabulary)
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        x, _ = self.both_ways(self.dropout(self.words(source.t())))
        for i, layer in enumerate(self.encoder):
            out, _ = layer(self.dropout(x))
            x = out + x if i else out
        keys = x.transpose(0, 1)
        y, _ = self.first(self.words(target.t()))
        context = self.attention(y.transpose(0, 1), keys, source == 0).transpose(0, 1)
        y = self.dropout(y)
        for i, layer in enumerate(self.decoder):
            out, _ = layer(torch.cat([self.dropout(y), context], dim=2))
            y = out + y if i else out
        return self.classifier(y).flatten(0, 1)


def pair_batch(n: int, *, seq_len: int, vocabulary: int = VOCABULARY) -> dict[str, Tensor]:
    """Sentences (n, seq_len) of two languages, and the word that follows each of the second (n, seq_len)."""
    words = torch.randint(1, vocabulary, (n, 2 * seq_len + 1))
    return {"source": words[:, :seq_len], "target": words[:, seq_len:-1], "labels": words[:, seq_len + 1 :]}


def smoothed_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """-log p in fp32 with labels smoothed by 0.1, without padding, a sentence."""
    labels = batch["labels"].t().flatten()
    log_p = F.log_softmax(model(batch["source"], batch["target"]), dim=-1, dtype=torch.float32)
    kept = labels != 0
    nll = -log_p.gather(dim=-1, index=labels.unsqueeze(1)).squeeze(1)
    loss = (0.9 * nll - 0.1 * log_p.mean(dim=-1)) * kept
    return loss.sum() / batch["source"].shape[0]


def _in_fp16() -> nn.Module:
    return Gnmt().half()


def job_of(name: str, sizes: dict[str, int], *, half: bool) -> Job:
    """gnmt, or gnmt-fp16: the whole model in fp16. Sentences of seq_len word pieces on either side."""
    in_fp16 = name == "gnmt-fp16"
    return Job(
        _in_fp16 if in_fp16 else Gnmt,
        partial(pair_batch, seq_len=sizes["seq_len"]),
        smoothed_loss,
        optimizer=MasterAdam if in_fp16 else "adam",
        clip_norm=None if in_fp16 else 5.0,  # MasterAdam clips
        name=name,
        seq_len=sizes["seq_len"],
    )


def buckets(global_batch: int) -> tuple[Part, ...]:
    """The steps of an epoch that Lambda runs: whole global batches of each bucket, the rest is left out (BucketingSampler of
    seq2seq/data/sampler.py)."""
    left = (PAIRS - LOGGED * sum(steps for *_, steps in BUCKETS)) / len(BUCKETS)
    counts = [int((LOGGED * steps + left) / global_batch) for *_, steps in BUCKETS]
    whole = sum(counts)
    return tuple(
        Part((("seq_len", length),), pieces, count / whole)
        for (length, pieces, _), count in zip(BUCKETS, counts, strict=True)
        if count
    )


def _read(row: Any) -> Reading | Unscored:
    """Throughput is the mean over steps of word pieces of both sentences a second, without padding (tot_tok_time of
    seq2seq/train/trainer.py). In training there are sentences a GPU. NVIDIA trains on 4.5 million pairs, Lambda on a part.

    A step begins with int(sum(src_length)) over a tensor on the device: Python adds up its elements one by one, after the copy
    of the batch has waited for the device."""
    if row.task == "infer":
        return Unscored("beam search: the number of its steps is unknown")
    mixed = row.precision == "amp-fp16"
    if row.source_repo == LAMBDA and mixed and (row.gpu, int(row.num_gpus)) == ("A40-48GB", 2):
        return Unscored("its log gave the buckets of sentences")
    whole = row.source_repo == EXAMPLES
    return Reading(
        "gnmt-fp16" if mixed else "gnmt",
        (("seq_len", PADDED),),
        per_sample=WORD_PIECES,
        precision="fp32" if mixed else None,
        parts=buckets(1 if whole else int(row.batch_per_gpu * row.num_gpus)),
        calls_per_sample=1.0,
    )


JOBS = {"gnmt": job_of}
ENTRIES = (Entry(EXAMPLES, "GNMT", _read), Entry(LAMBDA, "GNMT", _read))
