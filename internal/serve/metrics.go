package serve

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ebb-offload/ebb/internal/control"
	"github.com/ebb-offload/ebb/internal/node"
)

// Limits of metrics.
const (
	// maxSeries ranks have series of their own; the others are summed up as rank "other".
	maxSeries     = 256
	maxLabel      = 96 // bytes of a label's value
	scrapeTimeout = 5 * time.Second
)

// metrics are counted from the start of the server on, out of the ranks' events and of what they say. The
// gauges of the ranks are made anew for each scrape (scrape).
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec // path, code
	pauses   operations
	resumes  operations
	skipped  *prometheus.CounterVec // reason
	asked    prometheus.Counter
	withdrew prometheus.Counter
	lost     prometheus.Counter
	written  prometheus.Counter
	read     prometheus.Counter

	mu   sync.Mutex
	seen map[string]fileBytes // by socket: what a rank had written and read when it was last asked
}

// operations is what is counted of pauses, or of resumes.
type operations struct {
	ended   *prometheus.CounterVec // outcome
	bytes   *prometheus.CounterVec // tier
	seconds prometheus.Histogram
}

// fileBytes are bytes that a process has written to its files and read from them so far.
type fileBytes struct{ written, read uint64 }

func newMetrics(version string) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), seen: map[string]fileBytes{}}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: name, Help: help,
			Buckets: []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500},
		})
		m.registry.MustRegister(h)
		return h
	}
	m.pauses = operations{
		ended:   counters("ebb_pauses_total", "Pauses of ranks that ended, by outcome.", "outcome"),
		bytes:   counters("ebb_pause_moved_bytes_total", "Bytes that pauses moved off the device, by where they went.", "tier"),
		seconds: histogram("ebb_pause_duration_seconds", "How long pauses of a rank took, without waiting for the safe point."),
	}
	m.resumes = operations{
		ended:   counters("ebb_resumes_total", "Resumes of ranks that ended, by outcome.", "outcome"),
		bytes:   counters("ebb_resume_moved_bytes_total", "Bytes that resumes moved to the device, by where they came from.", "tier"),
		seconds: histogram("ebb_resume_duration_seconds", "How long resumes of a rank took."),
	}
	m.skipped = counters("ebb_pause_skipped_bytes_total", "Bytes that pauses did not have to move, by why.", "reason")
	m.asked = counter("ebb_pauses_asked_total", "Pauses asked for from outside a rank, which wait for its safe point.")
	m.withdrew = counter("ebb_pauses_withdrawn_total", "Pauses asked for from outside a rank that were withdrawn or too late.")
	m.lost = counter("ebb_events_lost_total", "Events of ranks that did not reach this server.")
	m.written = counter("ebb_disk_written_bytes_total", "Bytes that ranks wrote to backup files.")
	m.read = counter("ebb_disk_read_bytes_total", "Bytes that ranks read from backup files.")
	m.requests = counters("ebb_http_requests_total", "Requests answered, by path and status.", "path", "code")
	for _, o := range []operations{m.pauses, m.resumes} { // present from the first scrape on
		for _, outcome := range []string{"done", "failed"} {
			o.ended.WithLabelValues(outcome)
		}
		for _, tier := range []string{"host", "disk"} {
			o.bytes.WithLabelValues(tier)
		}
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "ebb_build_info", Help: "The version of this ebb, as a label.", ConstLabels: prometheus.Labels{"version": version},
	})
	info.Set(1)
	m.registry.MustRegister(info, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// replied counts a request. path is one of the routes, or "other".
func (m *metrics) replied(path string, status int) {
	m.requests.WithLabelValues(path, strconv.Itoa(status)).Inc()
}

// heard counts an event of a rank.
func (m *metrics) heard(e control.Event) {
	switch e.Kind {
	case control.EventAsked:
		m.asked.Inc()
	case control.EventWithdraw:
		m.withdrew.Inc()
	case control.EventLost:
		m.lost.Add(float64(e.Lost))
	case control.EventEnd:
		m.ended(e)
	}
}

func (m *metrics) ended(e control.Event) {
	of := m.pauses
	switch e.Operation {
	case control.CmdPause:
	case control.CmdResume:
		of = m.resumes
	default:
		return
	}
	var o node.LastOperation
	if len(e.Outcome) > 0 && json.Unmarshal(e.Outcome, &o) == nil {
		of.bytes.WithLabelValues("host").Add(float64(o.HostBytes))
		of.bytes.WithLabelValues("disk").Add(float64(o.DiskBytes))
	}
	if e.Error != "" || o.Error != "" {
		of.ended.WithLabelValues("failed").Inc()
		return
	}
	of.ended.WithLabelValues("done").Inc()
	of.seconds.Observe(max(e.Seconds, o.Seconds))
	if e.Operation == control.CmdPause {
		m.skipped.WithLabelValues("zero").Add(float64(o.SkippedZero))
		m.skipped.WithLabelValues("same").Add(float64(o.SkippedSame))
		m.skipped.WithLabelValues("unused").Add(float64(o.SkippedUnused))
	}
}

// saw counts what ranks wrote and read since they were last asked. What a rank did before the server
// first saw it counts too: it began at 0.
func (m *metrics) saw(l *look) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := map[string]fileBytes{}
	for _, r := range l.ranks {
		before := m.seen[r.Socket]
		if r.Err != "" {
			now[r.Socket] = before
			continue
		}
		count := fileBytes{written: max(r.Status.Disk.Written, before.written), read: before.read}
		var read uint64
		for _, d := range r.Status.Disk.Dirs {
			read += d.Read
		}
		count.read = max(read, before.read)
		m.written.Add(float64(count.written - before.written))
		m.read.Add(float64(count.read - before.read))
		now[r.Socket] = count
	}
	for _, q := range l.silent {
		if before, known := m.seen[q.Socket]; known {
			now[q.Socket] = before
		}
	}
	m.seen = now
}

// scrape answers GET /metrics. A rank that gives no answer has ebb_rank_up 0, and holds the scrape up no
// longer than a look does.
func (s *Server) scrape(w http.ResponseWriter, r *http.Request) *refusal {
	ctx, stop := context.WithTimeout(r.Context(), scrapeWithin(r.Header))
	defer stop()
	ranks := rankCollector{now: map[string]operation{}}
	if ranks.look = s.view.get(ctx); ranks.look == nil {
		return refuse(http.StatusGatewayTimeout, codeLate, "", "the ranks were not asked by the deadline")
	}
	s.findings.say(ranks.look.err)
	ranks.now, _ = s.hub.busy()
	own := prometheus.NewRegistry()
	if err := own.Register(ranks); err != nil {
		return refuse(http.StatusInternalServerError, codeInternal, "", "%s", oneLine(err))
	}
	promhttp.HandlerFor(prometheus.Gatherers{s.metrics.registry, own}, promhttp.HandlerOpts{DisableCompression: true}).ServeHTTP(w, r)
	return nil
}

// scrapeWithin is a little less than the scraper waits, as its header says.
func scrapeWithin(h http.Header) time.Duration {
	seconds, err := strconv.ParseFloat(h.Get("X-Prometheus-Scrape-Timeout-Seconds"), 64)
	if err != nil || !(seconds > 0) || seconds > scrapeTimeout.Seconds() {
		return scrapeTimeout
	}
	return time.Duration(seconds * 0.9 * float64(time.Second))
}

// rankCollector makes the gauges of one look.
type rankCollector struct {
	look *look
	now  map[string]operation
}

var rankLabels = []string{"job", "role", "cell", "rank"}

func rankGauge(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append(append([]string(nil), rankLabels...), more...), nil)
}

var (
	ranksDesc      = prometheus.NewDesc("ebb_ranks", "Ranks on this node, by state.", []string{"state"}, nil)
	upDesc         = rankGauge("ebb_rank_up", "Whether the rank answered.")
	bytesDesc      = rankGauge("ebb_rank_bytes", "Managed memory of the rank, by whether it is on the device and where it is.", "state", "tier")
	unmanagedDesc  = rankGauge("ebb_rank_unmanaged_bytes", "Device memory of the rank that ebb does not manage.")
	stagingDesc    = rankGauge("ebb_rank_staging_bytes", "Pinned staging memory of the rank.")
	heldDesc       = rankGauge("ebb_rank_host_held_bytes", "Host memory that the rank keeps for backups, used or not.")
	hangingDesc    = rankGauge("ebb_rank_hanging_threads", "Threads of the rank in file calls that gave no answer.")
	lastBytesDesc  = rankGauge("ebb_rank_last_operation_bytes", "Logical bytes of the rank's latest pause or resume.", "operation")
	lastSecsDesc   = rankGauge("ebb_rank_last_operation_seconds", "How long the rank's latest pause or resume took.", "operation")
	lastFailedDesc = rankGauge("ebb_rank_last_operation_failed", "Whether the rank's latest pause or resume failed.", "operation")
)

// Describe is part of prometheus.Collector.
func (rankCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		ranksDesc, upDesc, bytesDesc, unmanagedDesc, stagingDesc, heldDesc, hangingDesc, lastBytesDesc, lastSecsDesc, lastFailedDesc,
	} {
		to <- d
	}
}

// series is one gauge with its labels.
type series struct {
	desc   *prometheus.Desc
	labels string // joined by zero bytes, which labels do not hold
}

// Collect is part of prometheus.Collector. Ranks of the same name, as those have that no launcher named,
// are summed up.
func (c rankCollector) Collect(to chan<- prometheus.Metric) {
	sums := map[series]float64{}
	names := map[string]bool{}
	add := func(who control.Who) func(*prometheus.Desc, float64, ...string) {
		labels := []string{label(who.Job), label(who.Role), label(who.Cell), label(who.Rank)}
		joined := strings.Join(labels, "\x00")
		if !names[joined] && len(names) == maxSeries {
			joined = "\x00\x00\x00other"
		} else {
			names[joined] = true
		}
		return func(d *prometheus.Desc, value float64, more ...string) {
			sums[series{d, strings.Join(append([]string{joined}, more...), "\x00")}] += value
		}
	}
	var states stateCounts
	for _, r := range c.look.ranks {
		gauge := add(r.Who)
		o, busy := c.now[r.Socket]
		states.add(stateOf(r, o, busy))
		if r.Err != "" {
			gauge(upDesc, 0)
			continue
		}
		gauge(upDesc, 1)
		tiers := tiersOf(r.Status)
		gauge(bytesDesc, float64(tiers.Device), "active", "device")
		gauge(bytesDesc, float64(tiers.Host), "paused", "host")
		gauge(bytesDesc, float64(tiers.Disk), "paused", "disk")
		gauge(bytesDesc, float64(tiers.Skipped), "paused", "skipped")
		gauge(bytesDesc, float64(tiers.Discarded), "paused", "discarded")
		gauge(unmanagedDesc, float64(r.Status.Unmanaged.Total))
		gauge(stagingDesc, float64(r.Status.Staging))
		gauge(heldDesc, float64(r.Status.Host.Held))
		gauge(hangingDesc, float64(r.Status.Quarantined.Threads))
		for name, o := range map[string]*node.LastOperation{"pause": r.Status.LastPause, "resume": r.Status.LastResume} {
			if o == nil {
				continue
			}
			failed := 0.0
			if o.Error != "" {
				failed = 1
			}
			gauge(lastBytesDesc, float64(o.Bytes), name)
			gauge(lastSecsDesc, o.Seconds, name)
			gauge(lastFailedDesc, failed, name)
		}
	}
	for _, q := range c.look.silent {
		states.add(stateSilent)
		add(q.Who)(upDesc, 0)
	}
	for state, n := range map[string]int{
		stateEmpty: states.Empty, stateResident: states.Resident, stateParked: states.Parked, statePartly: states.Partly,
		stateWaiting: states.Waiting, stateMoving: states.Moving, stateSilent: states.Silent,
	} {
		to <- prometheus.MustNewConstMetric(ranksDesc, prometheus.GaugeValue, float64(n), state)
	}
	for s, value := range sums {
		to <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, value, strings.Split(s.labels, "\x00")...)
	}
}

// label is a text of a rank as the value of a label.
func label(text string) string {
	return strings.ReplaceAll(cut(strings.ToValidUTF8(text, "?"), maxLabel), "\x00", "?")
}
