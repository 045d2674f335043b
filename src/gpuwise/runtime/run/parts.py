"""The parts of a run, each of which owns its state, and the one place where they are put together."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from gpuwise.cost.forecast import Forecast
from gpuwise.job import Job, fingerprint
from gpuwise.notes import Note
from gpuwise.runs.attempt import Attempt
from gpuwise.runtime.build.program import Program, build
from gpuwise.runtime.copies import RunCopies
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.health import LossWatch
from gpuwise.runtime.interruption import ReadWatch, Stop, source_for
from gpuwise.runtime.parallel.world import make_world
from gpuwise.runtime.ranks import Ranks, RunRanks
from gpuwise.runtime.ranks.comparison import compare, software
from gpuwise.runtime.ranks.last_words import LastWords
from gpuwise.runtime.ranks.word import StepWord
from gpuwise.runtime.run.checkpoint_manager import CheckpointManager, RunCheckpoints
from gpuwise.runtime.run.decisions import AgreedDecisions, Decisions
from gpuwise.runtime.run.device_losses import AHEAD
from gpuwise.runtime.run.evaluation import Evaluations
from gpuwise.runtime.run.folder import RunFolder, RunIdentity, identity_of
from gpuwise.runtime.run.health import RunHealth
from gpuwise.runtime.run.length import count_steps, of_the_run
from gpuwise.runtime.run.loss_tracker import LossTracker
from gpuwise.runtime.run.memory import PeakMemory
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.part_makers import blaming, close, header, loader_of, log_of, manager_of, on_nonfinite
from gpuwise.runtime.run.preparation import check_skips, check_strategy, prepare_process, seed_rank
from gpuwise.runtime.run.rank_report import RankReporter, Relay
from gpuwise.runtime.run.reporter import Reporter
from gpuwise.runtime.run.resume import checkpoint_to_continue
from gpuwise.runtime.run.run_state import LossHistory, RunState
from gpuwise.runtime.run.schedule import LearningRate, factor_of
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.runtime.run.stepper import Stepper, sees_losses
from gpuwise.runtime.run.together import StepTogether
from gpuwise.runtime.run.update_guard import UpdateGuard
from gpuwise.runtime.show import RunLog, display, writer
from gpuwise.strategy import Strategy


@dataclass(frozen=True)
class RunParts:
    """The parts of a run, for its loop.

    Attributes:
        settings: settings of the run.
        forecast: forecast of its step; None without one.
        loader: the micro-batches of the job.
        program: the model, its forward and backward pass, its optimizer.
        stepper: takes a step.
        losses: losses of the steps so far.
        meter: the clock and the step counter.
        evaluations: the job's metrics on held-out data and their schedule.
        checkpoints: saves the state of the run.
        copies: copies of what is saved, in a folder elsewhere.
        stop: whether a signal, a notice or a time limit ends the run.
        health: memory, stalls and other programs.
        reporter: display, log and curves.
        decisions: whether the run stops or is saved, alone or with other ranks.
        ranks: the ranks of the run.
        rank_reporter: what ranks report to rank 0; None for a single process.
        attempt: this start of the run, which keeps its state.json.
    """

    settings: TrainSettings
    forecast: Forecast | None
    loader: MicroBatchLoader
    program: Program
    stepper: Stepper
    losses: LossTracker
    meter: Meter
    evaluations: Evaluations
    checkpoints: RunCheckpoints
    copies: RunCopies
    stop: Stop
    health: RunHealth
    reporter: Reporter
    decisions: Decisions
    ranks: Ranks
    rank_reporter: RankReporter | None
    attempt: Attempt

    def note_failure(self, words: LastWords) -> None:
        """Notes in log and state.json why this process is ended in a collective."""
        self.reporter.log.write("error", {"code": words.code, "message": words.what})
        self.attempt.fail(words.error())


def start_run(
    job: Job,
    strategy: Strategy,
    settings: TrainSettings,
    device: torch.device,
    *,
    forecast: Forecast | None,
    plan: Mapping[str, object] | None,
    notes: Sequence[Note],
    ranks: RunRanks,
    attempt: Attempt,
    stack: ExitStack,
) -> RunParts:
    """The parts of a run, ready for its next step. What has to be closed is put on `stack`.

    Of several ranks, rank 0 has the folder, the log, the display and the writers; the others pass on what they have to say.
    """
    own = ranks.own
    check_strategy(strategy, settings, ranks=own.size)
    compare(
        own,
        "settings",
        lambda: {**software(settings.job_argument), "strategy": strategy.to_dict(), "settings": settings.shared()},
    )
    notes = list(notes)

    # 1. The folder is locked before anything is changed that another run in it may rely on.
    folder = None if settings.folder is None else RunFolder(settings.folder)
    copies = RunCopies(settings, folder, own)
    if folder is not None and own.leads:
        stack.enter_context(folder.locked())
        notes += folder.exposure() + copies.prepare(lambda: identity_of(job, strategy, settings, steps=1))
        attempt.begin()  # after the state of the run has come from its copy
    own.of_first("locked", lambda: True)
    settings = settings if folder is None else of_the_run(settings, folder.identity())

    # 2. The process: memory, threads, random numbers.
    notes += prepare_process(job, strategy, settings, device, core_share=own.core_share)

    # 3. Log, display and writers: what is wrong with them is known before anything is trained.
    log = stack.enter_context(log_of(settings, folder) if own.leads else RunLog(None))
    relay = None if own.leads else Relay(own)
    shown = stack.enter_context(display(settings.progress, title=job.name) if relay is None else relay)
    writers = [
        writer(name, settings.started_in if folder is None else folder.path) for name in (settings.writers if own.leads else ())
    ]

    # 4. Data and program. Their memory is counted from here on.
    memory = PeakMemory(device)
    world = make_world(strategy.mesh, device.type) if own.several else None
    loader = blaming(job, "opening its data", job.data, lambda: loader_of(job, strategy, settings, device, world))
    stack.callback(loader.close)
    steps, assumed = count_steps(job, loader, strategy, settings)
    notes += [*loader.notes, *assumed]
    if world is not None:
        compare(own, "data", lambda: {"job (its fingerprint)": fingerprint(job), "data": loader.description()})
    program = blaming(job, "building its model", job.model, lambda: build(job, strategy, device, world))
    assert program.optimizer is not None
    notes += program.notes
    check_skips(program, settings)
    if world is not None:
        seed_rank(settings.seed, world)

    # 5. What is saved with the program. The learning rate is taken over before a checkpoint brings that of its step.
    rate = LearningRate(program.optimizer, factor_of(job, steps))
    evaluations = Evaluations(job, strategy, settings, loader.micro_batches_per_epoch)
    history = LossHistory(LossWatch(on_nonfinite=on_nonfinite(program, settings)))
    state = RunState(program, loader, evaluations, history)

    # 6. The checkpoint to go on from, if there is one.
    manager: CheckpointManager | None = None
    identity: RunIdentity | None = None
    before, spent_before_s = 0, 0.0
    if folder is not None:
        identity = identity_of(job, strategy, settings, steps=steps, plan=plan)
        manager = manager_of(folder, settings, device, own, strategy.mesh)
        checkpoint, resume_notes = checkpoint_to_continue(
            folder, manager, copies, identity, resume=settings.resume, steps=steps
        )
        notes += resume_notes
        if checkpoint is not None:
            before, spent_before_s = checkpoint.step, state.load(checkpoint)

    # 7. The clock starts, and the user is told.
    meter = Meter(steps=steps, global_batch=strategy.global_batch, before=before, spent_before_s=spent_before_s)
    reporter = Reporter(
        shown,
        log,
        writers,
        meter=meter,
        folder=folder if own.leads else None,
        identity=identity,
        header=header(program, settings, meter, forecast, attempt),
        notes=notes,
    )
    stack.callback(reporter.writers.close)
    health = RunHealth(
        program,
        loader,
        memory,
        forecast=forecast.memory if forecast else None,
        reporter=reporter,
        meter=meter,
        folder=None if folder is None else folder.path,
        ranks=own,
    )
    checkpoints = RunCheckpoints(manager, state, reporter=reporter, meter=meter, stall=health.stall)
    copies.begin(reporter, checkpoints, before=before)
    stack.push(copies.close)
    stack.callback(close, checkpoints, health)
    attempt.ready(step=before, steps=steps)
    checkpoints.check()  # a state that cannot be saved is known before anything is trained

    # 8. From here on, signals, notices and deadlines are listened to, and a run that stands still is noticed.
    time_limit_s = settings.time_limit_s if own.leads else None
    used_s = attempt.elapsed_s  # a limit is of the whole run, its preparation included
    stop = stack.enter_context(Stop(time_limit_s=time_limit_s, used_s=used_s, source=source_for(settings.preemption)))
    stack.enter_context(health)
    decisions: Decisions = Decisions(stop, meter=meter, checkpoints=checkpoints, copies=copies, evaluations=evaluations)
    together: StepTogether | None = None
    rank_reporter: RankReporter | None = None
    if world is not None:
        agreed = AgreedDecisions(
            own,
            stop,
            lag=0 if sees_losses(program, skips=settings.on_nonfinite == "skip") else AHEAD,
            meter=meter,
            checkpoints=checkpoints,
            copies=copies,
            evaluations=evaluations,
        )
        decisions = agreed
        word = StepWord(own, world, device, has_loss=program.has_loss, with_gradients=program.gradient_numbers)
        together = StepTogether(own, word, agreed, accumulation=strategy.accumulation)
        program.on_loss = together.add_loss
        rank_reporter = RankReporter(
            own,
            ranks.pulse,
            meter=meter,
            stall=health.stall,
            reporter=reporter,
            relay=relay,
            host_works=device.type == "cpu",
        )
        ranks.pulse.status = rank_reporter.status
    stack.enter_context(ReadWatch(loader, lambda: decisions.ends_in_a_read(time.perf_counter())))

    # 9. The step itself. A run that is continued has its files already; another opens them after its first step.
    losses = LossTracker(program, loader, settings, history, reporter=reporter, checkpoints=checkpoints, health=health)
    guard = UpdateGuard(program, skips=settings.on_nonfinite == "skip")  # every rank skips by the loss of all
    stepper = Stepper(
        program,
        loader,
        rate,
        guard,
        together=together,
        losses=losses,
        checkpoints=checkpoints,
        health=health,
        reporter=reporter,
        meter=meter,
    )
    if before:
        reporter.begin()
    return RunParts(
        settings,
        forecast,
        loader,
        program,
        stepper,
        losses,
        meter,
        evaluations,
        checkpoints,
        copies,
        stop,
        health,
        reporter,
        decisions,
        own,
        rank_reporter,
        attempt,
    )
