"""A training run on this machine, from the command to the weights on the disk.

Read it in this order:

1. gpuwise.cli.train: the command, its flags and exit codes.
2. gpuwise.api.training: the job, its strategy, its forecast and the settings of the run.
3. gpuwise.runtime.run.training: the loop, and what it does between steps.
4. gpuwise.runtime.run.parts: the parts of a run, put together in one function.
5. gpuwise.runtime.run.stepper: one step, its data, its gradients, its update and its loss.
6. gpuwise.runtime.build.program: the model made ready for its strategy, its forward and backward pass and its optimizer.
7. gpuwise.runtime.run.checkpoint_manager: when the state of the run is saved, and what of it.
8. gpuwise.runtime.checkpoint.saver: the state copied, and written to the disk beside the training.

Everything else is a part that one of these names, and owns its own state:

- data: gpuwise.runtime.data.loader
- losses: loss_tracker, device_losses, update_guard, first_update
- evaluations: evaluation
- what is shown and logged: reporter, metrics, gpuwise.runtime.show
- memory, stalls and other programs: health
- signals, notices and time limits: gpuwise.runtime.interruption
- going on from a checkpoint: resume, run_state
- the result: summary
"""
