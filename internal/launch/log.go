package launch

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
)

// Formats of ebb's own lines.
const (
	LogText = "text" // "ebb: " and the message
	LogJSON = "json" // one object a line, with the rank where one is meant
)

// NewLog writes ebb's own lines in a format, each with one write, so that they do not mix with those
// of the ranks.
//
// Text has what a user should know. JSON also has what a rank's own output shows to a person who looks
// on, its start and its end: they are logged at the debug level, and written as "info". Levels are in small
// letters, as those of the library's lines are.
func NewLog(w io.Writer, format string) *slog.Logger {
	if format != LogJSON {
		return slog.New(&textLines{mu: new(sync.Mutex), w: w})
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
			if level, ok := a.Value.Any().(slog.Level); ok && len(groups) == 0 && a.Key == slog.LevelKey {
				a.Value = slog.StringValue(strings.ToLower(max(level, slog.LevelInfo).String()))
			}
			return a
		},
	}))
}

// textLines is the handler of text: the message says it all, attributes are for machines.
type textLines struct {
	mu *sync.Mutex // orders writes
	w  io.Writer
}

func (t *textLines) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (t *textLines) WithAttrs([]slog.Attr) slog.Handler               { return t }
func (t *textLines) WithGroup(string) slog.Handler                    { return t }

func (t *textLines) Handle(_ context.Context, r slog.Record) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err := io.WriteString(t.w, "ebb: "+strings.Join(strings.Fields(r.Message), " ")+"\n")
	return err
}

// who are the attributes of lines about a rank.
func (r Rank) who() []any {
	return []any{"job", r.Job, "role", r.Role, "cell", strconv.Itoa(r.Cell), "rank", strconv.Itoa(max(r.Rank, 0))}
}
