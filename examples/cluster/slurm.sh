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
# One launcher on each machine; all meet on the first. Two jobs that share it have two ports.
hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${hosts%%$'\n'*}
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" \
  --max-restarts 3 --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID" --rdzv-endpoint "$first:$((20000 + SLURM_JOB_ID % 10000))" \
  -m marft_algos train "${words[@]}"
