#!/usr/bin/env bash
# Trains on two machines of a SLURM cluster: sbatch examples/cluster/slurm.sh [ALGO] [options of marft train]
# A job that is queued again (its machine failed, its time was over) goes on with its run.
#SBATCH --job-name=marft
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@300
#SBATCH --output=marft-%j.log
set -euo pipefail

# A folder that all machines share.
runs=${MARFT_RUNS:-$SLURM_SUBMIT_DIR/runs}
name=${MARFT_NAME:-$SLURM_JOB_NAME-$SLURM_JOB_ID}

words=("$@" --runs-dir "$runs" --name "$name")
if [ -f "$runs/$name/config.toml" ]; then
  words=(--resume "$runs/$name")
fi
# One launcher on each machine; which ones there are, and where they meet, it reads from the step's variables.
exec srun --kill-on-bad-exit=1 marft train "${words[@]}" --nproc "${SLURM_GPUS_ON_NODE:-1}"
