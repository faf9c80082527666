package sizing

import "testing"

// Two ranks that moved 4 GB each in 4 s have a disk of 2 GB/s. One has grown to twice its size: both take
// 6 s, since they share the disk.
func TestRunningRanksArePredictedByWhatTheyDidLast(t *testing.T) {
	did := Operation{Bytes: 5e9, Disk: 4e9, Seconds: 4}
	ranks := []LiveRank{{Name: "a", Bytes: 10e9, Pause: &did, Resume: &did}, {Name: "b", Bytes: 5e9, Pause: &did, Resume: &did}}
	for i, f := range Live(ranks, LiveRates{}) {
		for _, one := range []Forecast{f.Pause, f.Resume} {
			near(t, "seconds", one.Seconds.Typical, 6)
			near(t, "last", one.Last, 4)
			if one.Error == nil || *one.Error != 0 {
				t.Errorf("rank %d: error %v", i, one.Error)
			}
			if !(one.Seconds.Low < 6 && 6 < one.Seconds.High) {
				t.Errorf("rank %d: %+v", i, one.Seconds)
			}
		}
	}
	if moved := Live(ranks, LiveRates{})[0].Pause.Moved; moved != 8e9 {
		t.Errorf("a moves %d bytes", moved)
	}
}

// With rates from elsewhere the latest operations show how good the prediction is.
func TestGivenRatesAreComparedWithTheLatestOperation(t *testing.T) {
	ranks := []LiveRank{{Name: "a", Bytes: 8e9, Pause: &Operation{Bytes: 8e9, Disk: 8e9, Seconds: 5}}}
	f := Live(ranks, LiveRates{Write: rate(2), Read: rate(4)})[0]
	want := 4 / pauseOfDisk.Typical
	near(t, "pause", f.Pause.Seconds.Typical, want)
	near(t, "error", *f.Pause.Error, (want/5-1)*100)
	// It has resumed nothing yet, and will bring back what it parked.
	near(t, "resume", f.Resume.Seconds.Typical, 2/resumeOfDisk.Typical)
	if f.Resume.Error != nil || f.Resume.Last != 0 {
		t.Errorf("a resume that was not has an error: %+v", f.Resume)
	}
}

// Each rank has a link of its own.
func TestRunningRanksInHostMemory(t *testing.T) {
	ranks := []LiveRank{
		{Name: "a", Bytes: 8e9, Pause: &Operation{Bytes: 4e9, Host: 4e9, Seconds: 1}},
		{Name: "b", Bytes: 4e9, Pause: &Operation{Bytes: 4e9, Host: 4e9, Seconds: 2}},
	}
	all := Live(ranks, LiveRates{})
	near(t, "a", all[0].Pause.Seconds.Typical, 2)
	near(t, "b", all[1].Pause.Seconds.Typical, 2)
	if all[0].Resume.Seconds.Known() {
		t.Errorf("a resume is predicted by nothing: %+v", all[0].Resume)
	}
}

func TestARankThatHasPausedNothingIsNotPredicted(t *testing.T) {
	for _, last := range []*Operation{nil, {}} {
		f := Live([]LiveRank{{Name: "a", Bytes: 8e9, Pause: last}}, LiveRates{Write: rate(2), Read: rate(4)})[0]
		if f.Pause.Seconds.Known() || f.Resume.Seconds.Known() {
			t.Errorf("%+v", f)
		}
	}
}
