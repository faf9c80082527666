package serve

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

// scraped reads the metrics as Prometheus does.
func (s *served) scraped() map[string]*dto.MetricFamily {
	s.t.Helper()
	r := s.get("/metrics")
	if r.status != http.StatusOK {
		s.t.Fatalf("status %d: %s", r.status, r.body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(r.body)))
	if err != nil {
		s.t.Fatal(err)
	}
	return families
}

// value is that of the one series that has these labels, which are pairs; NaN-like -1 where there is none.
func value(t testing.TB, families map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	t.Helper()
	family := families[name]
	if family == nil {
		t.Fatalf("no metric %s", name)
	}
	found := -1.0
	for _, m := range family.GetMetric() {
		have := map[string]string{}
		for _, l := range m.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		same := true
		for i := 0; i+1 < len(labels); i += 2 {
			same = same && have[labels[i]] == labels[i+1]
		}
		if !same {
			continue
		}
		if found >= 0 {
			t.Fatalf("%s has several series of %q", name, labels)
		}
		found = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		if h := m.GetHistogram(); h != nil {
			found = float64(h.GetSampleCount())
		}
	}
	return found
}

func TestMetricsFollowPrometheusRules(t *testing.T) {
	f := newFake(2)
	f.ranks[0].Status.LastPause = &node.LastOperation{Bytes: 1, Seconds: 1}
	s := serving(t, f, nil)
	<-f.watched
	<-f.watched
	f.emit(t, 0, control.Event{Kind: control.EventEnd, Operation: "pause"})
	r := s.get("/metrics")
	problems, err := promlint.New(strings.NewReader(string(r.body))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for name, family := range s.scraped() {
		if family.GetHelp() == "" || family.GetType() == dto.MetricType_UNTYPED {
			t.Errorf("%s: help %q, type %v", name, family.GetHelp(), family.GetType())
		}
		if !strings.HasPrefix(name, "ebb_") && !strings.HasPrefix(name, "process_") {
			t.Errorf("%s is not named after ebb", name)
		}
	}
}

func TestMetricsOfRanks(t *testing.T) {
	f := newFake(3)
	parked(&f.ranks[0].Status, 3, 4)
	f.ranks[0].Status.LastPause = &node.LastOperation{Bytes: 7, Seconds: 0.25, Error: "disk full"}
	f.ranks[1].Err = "no answer"
	f.silent = []node.Silent{{Who: control.Who{Role: "critic", Cell: "1", Rank: "0", PID: 9}, Socket: "/run/9.sock"}}
	m := serving(t, f, nil).scraped()
	for _, want := range []struct {
		value  float64
		name   string
		labels []string
	}{
		{1, "ebb_ranks", []string{"state", "parked"}},
		{2, "ebb_ranks", []string{"state", "silent"}},
		{0, "ebb_ranks", []string{"state", "moving"}},
		{1, "ebb_rank_up", []string{"rank", "0", "role", "actor", "cell", "0", "job", "grpo"}},
		{0, "ebb_rank_up", []string{"rank", "1"}},
		{0, "ebb_rank_up", []string{"role", "critic"}},
		{3, "ebb_rank_bytes", []string{"rank", "0", "state", "paused", "tier", "host"}},
		{4, "ebb_rank_bytes", []string{"rank", "0", "state", "paused", "tier", "disk"}},
		{2, "ebb_rank_bytes", []string{"rank", "0", "state", "paused", "tier", "skipped"}},
		{1 << 30, "ebb_rank_bytes", []string{"rank", "2", "state", "active", "tier", "device"}},
		{0.25, "ebb_rank_last_operation_seconds", []string{"rank", "0", "operation", "pause"}},
		{1, "ebb_rank_last_operation_failed", []string{"rank", "0", "operation", "pause"}},
		{-1, "ebb_rank_bytes", []string{"rank", "1"}}, // a silent rank has no bytes rather than old ones
		{1, "ebb_build_info", []string{"version", "1.2.3"}},
	} {
		if got := value(t, m, want.name, want.labels...); got != want.value {
			t.Errorf("%s%v is %v, want %v", want.name, want.labels, got, want.value)
		}
	}
}

func TestMetricsOfEvents(t *testing.T) {
	f := newFake(1)
	s := serving(t, f, nil)
	<-f.watched
	m := s.scraped()
	for _, name := range []string{"ebb_pauses_total", "ebb_resumes_total"} { // rates need a first value
		if got := value(t, m, name, "outcome", "done"); got != 0 {
			t.Errorf("%s is %v at first", name, got)
		}
	}
	outcome, err := json.Marshal(node.LastOperation{HostBytes: 5, DiskBytes: 6, SkippedZero: 7, Seconds: 0.3})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []control.Event{
		{Kind: control.EventAsked, Operation: "pause"},
		{Kind: control.EventWithdraw, Operation: "pause"},
		{Kind: control.EventEnd, Operation: "pause", Outcome: outcome},
		{Kind: control.EventEnd, Operation: "pause", Error: "disk full"},
		{Kind: control.EventEnd, Operation: "resume", Seconds: 1, Outcome: json.RawMessage("null")},
		{Kind: control.EventEnd, Operation: "something new"},
		{Kind: control.EventLost, Lost: 3},
	} {
		f.emit(t, 0, e)
	}
	m = s.scraped()
	for _, want := range []struct {
		value  float64
		name   string
		labels []string
	}{
		{1, "ebb_pauses_total", []string{"outcome", "done"}},
		{1, "ebb_pauses_total", []string{"outcome", "failed"}},
		{1, "ebb_resumes_total", []string{"outcome", "done"}},
		{1, "ebb_pause_duration_seconds", nil},
		{1, "ebb_resume_duration_seconds", nil},
		{5, "ebb_pause_moved_bytes_total", []string{"tier", "host"}},
		{6, "ebb_pause_moved_bytes_total", []string{"tier", "disk"}},
		{7, "ebb_pause_skipped_bytes_total", []string{"reason", "zero"}},
		{1, "ebb_pauses_asked_total", nil},
		{1, "ebb_pauses_withdrawn_total", nil},
		{3, "ebb_events_lost_total", nil},
	} {
		if got := value(t, m, want.name, want.labels...); got != want.value {
			t.Errorf("%s%v is %v, want %v", want.name, want.labels, got, want.value)
		}
	}
}

// What the ranks wrote is counted once, also when a rank ends or does not answer for a while.
func TestWrittenBytesOnlyGrow(t *testing.T) {
	f := newFake(2)
	s := serving(t, f, nil)
	scrape := func(want float64, change func()) {
		t.Helper()
		f.mu.Lock()
		change()
		f.mu.Unlock()
		s.view.stale()
		if got := value(t, s.scraped(), "ebb_disk_written_bytes_total"); got != want {
			t.Errorf("%v written, want %v", got, want)
		}
	}
	scrape(30, func() { f.ranks[0].Status.Disk.Written, f.ranks[1].Status.Disk.Written = 10, 20 })
	scrape(35, func() { f.ranks[0].Status.Disk.Written = 15 })
	scrape(35, func() { f.ranks[0].Err = "no answer" })
	scrape(41, func() { f.ranks[0].Err = ""; f.ranks[0].Status.Disk.Written = 21 })
	scrape(41, func() { f.ranks = f.ranks[1:] })
}

// The number of series is bounded, whatever ranks there are and however they are called.
func TestSeriesAreBounded(t *testing.T) {
	f := newFake(maxSeries + 50)
	f.ranks[1].Who = f.ranks[0].Who // as two processes that no launcher named
	f.ranks[2].Job, f.ranks[2].Role = strings.Repeat("j", 5000)+"\xff", "a\x00b\"\n"
	s := serving(t, f, nil)
	m := s.scraped()
	if n := len(m["ebb_rank_up"].GetMetric()); n != maxSeries+1 {
		t.Errorf("%d series", n)
	}
	if got := value(t, m, "ebb_rank_up", "rank", "other"); got != 49 {
		t.Errorf("%v others, want 49", got)
	}
	if got := value(t, m, "ebb_rank_up", "rank", "0"); got != 2 {
		t.Errorf("%v ranks of the same name, want 2", got)
	}
	for _, metric := range m["ebb_rank_up"].GetMetric() {
		for _, l := range metric.GetLabel() {
			if len(l.GetValue()) > maxLabel+len("…") {
				t.Errorf("label %s has %d bytes", l.GetName(), len(l.GetValue()))
			}
		}
	}
	for i := range 50 {
		s.get(fmt.Sprint("/nothing/", i))
	}
	if got := value(t, s.scraped(), "ebb_http_requests_total", "path", "other", "code", "404"); got != 50 {
		t.Errorf("%v requests of other paths, want 50", got)
	}
}

// A rank that gives no answer does not hold a scrape up: it ends when the scraper's time does.
func TestAScrapeIsInTime(t *testing.T) {
	f := newFake(1)
	f.hold = make(chan struct{})
	defer close(f.hold)
	s := serving(t, f, nil)
	refused(t, s.get("/metrics", "X-Prometheus-Scrape-Timeout-Seconds", "0.05"), http.StatusGatewayTimeout, codeLate)
	for header, want := range map[string]float64{"": 5, "x": 5, "0": 5, "-1": 5, "NaN": 5, "100": 5, "1": 0.9} {
		if got := scrapeWithin(http.Header{"X-Prometheus-Scrape-Timeout-Seconds": {header}}).Seconds(); got != want {
			t.Errorf("%q: %v s, want %v", header, got, want)
		}
	}
}

func TestThePolicyLetsOnlyThePagesOwnScriptRun(t *testing.T) {
	s := serving(t, newFake(0), nil)
	r := s.get("/")
	policy := r.header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("the policy %q lacks %q", policy, part)
		}
	}
	page := string(r.body)
	inline := func(begin, end string) string {
		_, after, _ := strings.Cut(page, begin)
		text, _, _ := strings.Cut(after, end)
		return text
	}
	for _, text := range []string{inline("<script>", "</script>"), inline("<style>", "</style>")} {
		if len(text) < 1000 || !strings.Contains(policy, hashOf(text)) {
			t.Errorf("the policy does not have the hash of the %d bytes that begin with %.40q", len(text), text)
		}
	}
	var foreign []string
	for _, mark := range []string{"<script src", "<link rel=\"stylesheet", "@import", "url(", "onclick=", "style=\"", "innerHTML"} {
		if strings.Contains(page, mark) {
			foreign = append(foreign, mark)
		}
	}
	if len(foreign) > 0 {
		t.Errorf("the page holds %q", foreign)
	}
	for _, header := range []string{"Cache-Control", "X-Content-Type-Options", "Referrer-Policy", "Cross-Origin-Resource-Policy"} {
		for _, path := range []string{"/", "/v1/node", "/nothing"} {
			if s.get(path).header.Get(header) == "" {
				t.Errorf("%s has no %s", path, header)
			}
		}
	}
	if r.header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Error(r.header.Get("Content-Type"))
	}
}
