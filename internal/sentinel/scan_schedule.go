// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sentinel

import "time"

// scanSchedule is when volumes are scanned.
type scanSchedule struct {
	rests       restBudget // of scans
	nextScan    time.Time  // when all volumes are scanned without an event
	rescanDelay time.Duration
	scanDue     bool
}

// scanned sets when the next scan follows a scan that has asked so many volumes.
func (s *scanSchedule) scanned(now time.Time, asked int) {
	rest := time.Duration(asked) * minProbeGap
	s.rests.charge(now, rest, probeBurst*rest) // credit for probeBurst scans in a row
	s.nextScan = now.Add(max(scanInterval, time.Duration(asked)*probeInterval))
}

// rescanFaults has the next scan follow sooner while there are faults, or one may be. The delay grows as long as they do not change.
func (s *scanSchedule) rescanFaults(now time.Time, changed, present bool) {
	if s.rescanDelay = min(2*s.rescanDelay, time.Hour); changed {
		s.rescanDelay = faultRescanInterval
	}
	if present && now.Add(s.rescanDelay).Before(s.nextScan) {
		s.nextScan = now.Add(s.rescanDelay)
	}
}
