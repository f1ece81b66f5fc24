#!/usr/bin/env bash
# A public swarm in small, on this machine: created, a bootstrap node with the swarm's page, and nodes that
# train and tell their names. Ctrl-C ends all of it in order; the folder stays.
#
#   demo.sh [FOLDER]     NODES=3 PAGE=127.0.0.1:8720 SECONDS_TO_RUN=0 (0: until Ctrl-C)
set -euo pipefail

folder=${1:-public-demo}
nodes=${NODES:-3} page=${PAGE:-127.0.0.1:8720} seconds=${SECONDS_TO_RUN:-0}
listen='network.listen=["/ip4/127.0.0.1/tcp/0"]'
mkdir "$folder"

stop() {
    trap - EXIT INT TERM
    [ -z "${waiting:-}" ] || kill "$waiting" || true
    for run in "$folder"/*/; do
        swarm-node stop --config "$run" &
    done
    wait
}
trap stop EXIT
trap 'exit 0' INT TERM

swarm-node init "$folder/seed"
swarm-node create --config "$folder/seed" --name "demo" --task-set tiny --epoch-seconds 5
swarm-node bootstrap --config "$folder/seed" --public "$page" --set "$listen" --detach
address=$(swarm-node status --config "$folder/seed" --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["addresses"][0])')
for number in $(seq "$nodes"); do
    swarm-node init "$folder/node-$number"
    swarm-node join --config "$folder/node-$number" --peers "$address" --set "$listen" \
        --set node.threads=1 --set "profile.name=node $number" \
        --set "profile.line=one of $nodes on one machine" --detach
done
echo "the swarm's page: http://$page/"

[ "$seconds" -gt 0 ] || echo "Ctrl-C ends it"
# In the background, so that a signal is heard at once.
sleep "$([ "$seconds" -gt 0 ] && echo "$seconds" || echo infinity)" &
waiting=$!
wait "$waiting" && waiting=
