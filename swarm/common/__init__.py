"""What every part of the swarm's side stands on: time, totals, fair shares and bounds."""
