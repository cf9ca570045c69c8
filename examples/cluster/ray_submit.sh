#!/usr/bin/env bash
# Sends a run to a Ray cluster that is there: examples/cluster/ray_submit.sh http://HEAD:8265 [ALGO] [options]
# The cluster's token: export RAY_AUTH_TOKEN=…, or ~/.ray/auth_token (Ray 2.60 asks for it; ray get-auth-token).
set -euo pipefail
address=${1:?expected the address of the cluster, as in http://HEAD:8265}
shift
exec ray job submit --address "$address" -- marft train "$@" --rollouts ray
