#!/bin/sh
# SPDX-FileCopyrightText: The kubediag Authors
# SPDX-License-Identifier: Apache-2.0

# The plugin of node-problem-detector for node-problem-detector.json beside it. Status 1 sets the condition: two scans, a minute apart,
# find a mount that hangs or answers with an error, which kubediag cannot heal. Status 0 clears it. With status 2 it is Unknown: the scan
# could not look, or no kubelet runs, for which node-problem-detector has a checker of its own.
scan() { "${KUBEDIAG:-kubediag}" scan --brief --only=HungMount,VolumeIOError; }

line=$(scan)
status=$?
if [ "$status" -eq 1 ]; then
	sleep "${KUBEDIAG_LASTS:-60}"
	line=$(scan)
	status=$?
fi
case $line in "no kubelet runs") status=2 ;; esac
echo "$line"
exit "$status"
