package main

import "fmt"

// summary is one cycle in numbers: bytes and seconds.
type summary struct {
	Cycle         int     `json:"cycle"`
	ParkedBytes   uint64  `json:"parked_bytes"` // by all ranks
	PauseSeconds  float64 `json:"pause_seconds"`
	PauseGBps     float64 `json:"pause_gb_per_s"`
	ResumeSeconds float64 `json:"resume_seconds"`
	ResumeGBps    float64 `json:"resume_gb_per_s"`
	UsedBefore    uint64  `json:"device_used_before"`
	UsedWhile     uint64  `json:"device_used_while"`
	UsedAfter     uint64  `json:"device_used_after"`
	DeviceBytes   uint64  `json:"device_bytes"`
	RolloutBytes  uint64  `json:"rollout_bytes"`
	StagingBytes  uint64  `json:"staging_bytes"` // by all ranks
	Sample        string  `json:"sample"`
}

// summarise checks one cycle, that the memory really was away and really was used by the
// rollout, and puts it in numbers. Ranks work side by side: the slowest one's time counts.
func summarise(n, ranks int, c *cycle) (summary, error) {
	s := summary{Cycle: n}
	if c == nil {
		return s, fmt.Errorf("cycle %d did not happen", n)
	}
	for rank := range ranks {
		pause, paused := c.pause[rank]
		resume, resumed := c.resume[rank]
		switch {
		case !paused || !resumed:
			return s, fmt.Errorf("cycle %d: rank %d did not report a pause and a resume", n, rank)
		case pause.Status == nil || resume.Status == nil:
			return s, fmt.Errorf("cycle %d: rank %d found no ebb_status", n, rank)
		case pause.Status.LastPause.Error != "":
			return s, fmt.Errorf("cycle %d: pause of rank %d: %s", n, rank, pause.Status.LastPause.Error)
		case resume.Status.LastResume.Error != "":
			return s, fmt.Errorf("cycle %d: resume of rank %d: %s", n, rank, resume.Status.LastResume.Error)
		case pause.Status.BytesPaused == 0 || resume.Status.BytesPaused != 0:
			return s, fmt.Errorf("cycle %d: rank %d had %d bytes paused after its pause and %d after its resume",
				n, rank, pause.Status.BytesPaused, resume.Status.BytesPaused)
		}
		s.ParkedBytes += pause.Status.LastPause.Bytes
		s.StagingBytes += pause.Status.StagingBytes
		s.PauseSeconds = max(s.PauseSeconds, pause.Seconds)
		s.ResumeSeconds = max(s.ResumeSeconds, resume.Seconds)
	}
	s.PauseGBps = rate(s.ParkedBytes, s.PauseSeconds)
	s.ResumeGBps = rate(s.ParkedBytes, s.ResumeSeconds)
	s.UsedBefore, s.UsedWhile, s.UsedAfter, s.DeviceBytes = c.before, c.while, c.after, c.total
	switch {
	case c.before < c.while+s.ParkedBytes:
		return s, fmt.Errorf("cycle %d: %d bytes were parked, but the device's used memory went from %d to %d",
			n, s.ParkedBytes, c.before, c.while)
	case c.after < c.while+s.ParkedBytes:
		return s, fmt.Errorf("cycle %d: after the resume only %d bytes of the device are used", n, c.after)
	case c.rollout == nil:
		return s, fmt.Errorf("cycle %d: the rollout reported nothing", n)
	}
	s.RolloutBytes, s.Sample = c.rollout.Bytes, c.rollout.Sample
	if c.rollout.Bytes < c.total/10*9 || c.rollout.Used < c.rollout.Bytes {
		return s, fmt.Errorf("cycle %d: the rollout had %d of the device's %d bytes", n, c.rollout.Bytes, c.total)
	}
	return s, nil
}

func rate(bytes uint64, seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(bytes) / seconds / 1e9
}

// summariseAll checks every cycle, and that each parked as much as the first.
func summariseAll(r *record, cycles int) ([]summary, error) {
	var all []summary
	for n := 1; n <= cycles; n++ {
		s, err := summarise(n, r.ranks, r.cycles[n])
		if err != nil {
			return all, err
		}
		all = append(all, s)
		if s.ParkedBytes != all[0].ParkedBytes {
			return all, fmt.Errorf("cycle %d parked %d bytes, the first one %d", n, s.ParkedBytes, all[0].ParkedBytes)
		}
	}
	return all, nil
}
