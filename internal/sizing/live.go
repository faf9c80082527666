package sizing

// Operation is a pause or resume that a rank did, all of it or some of its memory.
type Operation struct {
	Bytes   uint64 // logical
	Host    uint64 // moved to or from host memory
	Disk    uint64 // moved to or from files
	Seconds float64
}

// LiveRank is a running rank.
type LiveRank struct {
	Name   string
	Bytes  uint64     // managed now, on the device or parked
	Pause  *Operation // the latest; nil: it has done none
	Resume *Operation
}

// LiveRates are rates that ranks are predicted with. A Range that is not known is taken from what the
// ranks did last.
type LiveRates struct {
	Link  Range
	Write Range // of the disks, all ranks together
	Read  Range
}

// Forecast is what is predicted for one operation of a rank, and how well it would have been for the
// latest one.
type Forecast struct {
	Moved   uint64   `json:"moved_bytes"`
	Seconds Range    `json:"seconds"` // not known: nothing to tell it by
	Last    float64  `json:"last_seconds,omitempty"`
	Error   *float64 `json:"error_percent,omitempty"` // of the prediction for the latest one: above 0, it took less
}

// LiveForecast is that of a rank.
type LiveForecast struct {
	Name   string   `json:"rank"`
	Bytes  uint64   `json:"bytes"`
	Pause  Forecast `json:"pause"`
	Resume Forecast `json:"resume"`
}

// spread is how far a pause or resume is from its median where nothing but the latest one is known: the
// widest of the intervals in rate.go, about their medians.
var spread = Range{pauseOfDisk.Low / pauseOfDisk.Typical, 1, resumeOfDisk.High}

// Live predicts the next pause and resume of ranks that park at the same time on the same disks. A rank
// is taken to move the same part of its bytes as the latest time.
//
// Where rates are not given they are what the ranks reached last, as if they had done that together: of
// the disks, all their bytes in the time of the slowest; of a link, the bytes of the rank in its time.
func Live(ranks []LiveRank, given LiveRates) []LiveForecast {
	all := make([]LiveForecast, len(ranks))
	for i, r := range ranks {
		all[i] = LiveForecast{Name: r.Name, Bytes: r.Bytes}
	}
	link := given.Link.times(pauseOfLink)
	for i, f := range forecasts(ranks, func(r LiveRank) *Operation { return r.Pause }, link, given.Write.times(pauseOfDisk)) {
		all[i].Pause = f
	}
	link = given.Link.times(resumeOfLink)
	for i, f := range forecasts(ranks, resumed, link, given.Read.times(resumeOfDisk)) {
		all[i].Resume = f
	}
	return all
}

// resumed is the latest resume. A rank that has done none brings back what it parked, in a time that is
// not known.
func resumed(r LiveRank) *Operation {
	if r.Resume == nil && r.Pause != nil {
		return &Operation{Bytes: r.Pause.Bytes, Host: r.Pause.Host, Disk: r.Pause.Disk}
	}
	return r.Resume
}

// forecasts are those of one direction.
func forecasts(ranks []LiveRank, of func(LiveRank) *Operation, link, disk Range) []Forecast {
	lasts, nexts := make([]Operation, len(ranks)), make([]Operation, len(ranks))
	for i, r := range ranks {
		if last := of(r); last != nil && last.Bytes > 0 {
			lasts[i] = *last
			part := float64(r.Bytes) / float64(last.Bytes)
			nexts[i] = Operation{Bytes: r.Bytes, Host: uint64(float64(last.Host) * part), Disk: uint64(float64(last.Disk) * part)}
		}
	}
	if !disk.Known() {
		disk = reached(lasts)
	}
	lastDisk, nextDisk := onDisk(lasts), onDisk(nexts)
	all := make([]Forecast, len(ranks))
	for i, last := range lasts {
		if last.Bytes == 0 {
			continue
		}
		own := link
		if !own.Known() && last.Disk == 0 && last.Seconds > 0 {
			own = spread.scaled(float64(last.Host) / last.Seconds)
		}
		all[i] = Forecast{Moved: nexts[i].Host + nexts[i].Disk, Last: last.Seconds, Seconds: together(nexts[i], nextDisk, own, disk)}
		if was := together(last, lastDisk, own, disk); was.Known() && last.Seconds > 0 {
			percent := (was.Typical/last.Seconds - 1) * 100
			all[i].Error = &percent
		}
	}
	return all
}

// together is how long a rank takes beside the others.
func together(o Operation, disks uint64, link, disk Range) Range {
	if o.Disk > 0 && !disk.Known() || o.Disk == 0 && !link.Known() {
		return Range{}
	}
	t := Range{}
	if link.Known() {
		t = link.seconds(o.Host + o.Disk)
	}
	if o.Disk > 0 {
		t = t.later(disk.seconds(disks))
	}
	return t
}

func onDisk(all []Operation) (n uint64) {
	for _, o := range all {
		n += o.Disk
	}
	return n
}

// reached is the rate of the disks in what was done.
func reached(all []Operation) Range {
	var slowest float64
	for _, o := range all {
		if o.Disk > 0 {
			slowest = max(slowest, o.Seconds)
		}
	}
	if slowest == 0 {
		return Range{}
	}
	return spread.scaled(float64(onDisk(all)) / slowest)
}
