#!/usr/bin/env bash
# Trains on two machines of a SLURM cluster: sbatch examples/cluster/slurm.sh [ALGO] [options of marft train]
# A job that is queued again goes on with its run: SLURM queues it where a machine fails or another job takes its place,
# and it queues itself before its time is over.
#SBATCH --job-name=marft
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --output=marft-%j.log
#SBATCH --open-mode=append
set -euo pipefail

# A folder that all machines share.
runs=${MARFT_RUNS:-$SLURM_SUBMIT_DIR/runs}
name=${MARFT_NAME:-$SLURM_JOB_NAME-$SLURM_JOB_ID}

words=("$@" --runs-dir "$runs" --name "$name")
if [ -f "$runs/$name/config.toml" ]; then
  words=(--resume "$runs/$name")
fi
# One launcher on each machine; all meet on the first. Two jobs that share it have two ports.
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${hosts%%$'\n'*}
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# A rank that is to stop ends its iteration first; launchers wait 30 s for it, or as long as this says.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240
saved() { ls "$runs/$name/checkpoints" 2>/dev/null || true; }
before=$(saved)
srun --kill-on-bad-exit=1 --cpus-per-task "${SLURM_CPUS_PER_TASK:-1}" torchrun --nnodes "$SLURM_NNODES" \
  --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" --max-restarts 3 --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" \
  --rdzv-endpoint "$first:$((20000 + SLURM_JOB_ID % 10000))" \
  -m marft_algos train "${words[@]}" &
step=$! status=0 over=
# Five minutes before the end: the launchers save the run and end.
trap 'over=yes; scancel --signal TERM "$SLURM_JOB_ID"' USR1
wait "$step" || status=$?
if [ -n "$over" ]; then  # which ended this wait
  status=0
  wait "$step" || status=$?
  # A job too short for an iteration would be queued for ever.
  if [ "$status" != 0 ] && [ "$(saved)" != "$before" ]; then
    scontrol requeue "$SLURM_JOB_ID"
  fi
fi
exit "$status"
