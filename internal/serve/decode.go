package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of a request.
const (
	maxBody    = 64 << 10
	maxList    = 1024 // names in a list
	maxName    = 256  // bytes of a name
	maxKey     = 128  // bytes of an Idempotency-Key
	maxTimeout = 24 * time.Hour
)

// command is the body of an action. An empty list means: all.
type command struct {
	Tags  []string `json:"tags,omitempty"`
	Roles []string `json:"roles,omitempty"`
	Ranks []string `json:"ranks,omitempty"`
	Cells []string `json:"cells,omitempty"`
	Jobs  []string `json:"jobs,omitempty"`
	PIDs  []int    `json:"pids,omitempty"`
	// Timeout is when the reply comes, in seconds from now. It is no part of what is asked for: the same
	// request may be repeated with another one.
	Timeout *float64 `json:"timeout_s,omitempty"`
}

// decode reads one JSON object into a request, and nothing else: no unknown member, nothing after it.
func decode(body io.Reader, into any) *refusal {
	text, err := io.ReadAll(body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return refuse(http.StatusRequestEntityTooLarge, codeTooLarge, "", "the body has more than %d bytes", large.Limit)
	case err != nil:
		return invalid("the body did not come: %s", short(oneLine(err)))
	}
	if !bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) { // null would else be taken for all ranks
		return refuse(http.StatusBadRequest, codeInvalid, "send {} for all ranks", "the body is no JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	var kind *json.UnmarshalTypeError
	switch err := d.Decode(into); {
	case errors.As(err, &kind):
		return invalid("%s: got a JSON %s, want %s", short(kind.Field), short(kind.Value), inJSON(kind.Type))
	case err != nil:
		return refuse(http.StatusBadRequest, codeInvalid, "send a JSON object with any of "+strings.Join(members(reflect.TypeOf(into).Elem()), ", "),
			"the body is no such request: %s", short(strings.TrimPrefix(oneLine(err), "json: ")))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return invalid("something follows the JSON object")
	}
	return nil
}

// members are the names that a request can have.
func members(request reflect.Type) (names []string) {
	for i := range request.NumField() {
		f := request.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			names = append(names, members(f.Type)...)
		case name != "" && name != "-":
			names = append(names, name)
		}
	}
	return names
}

// inJSON is what JSON calls the values of a type.
func inJSON(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "a list"
	case reflect.String:
		return "a string"
	case reflect.Int:
		return "a whole number"
	default:
		return "a number"
	}
}

// check refuses lists and names that nobody can mean, and puts the lists in order: the order and
// repeats of names say nothing.
func (c *command) check() *refusal {
	for _, list := range []struct {
		name  string
		names *[]string
	}{{"tags", &c.Tags}, {"roles", &c.Roles}, {"ranks", &c.Ranks}, {"cells", &c.Cells}, {"jobs", &c.Jobs}} {
		if len(*list.names) > maxList {
			return invalid("%s: %d names, at most %d are taken", list.name, len(*list.names), maxList)
		}
		for _, name := range *list.names {
			if name == "" || len(name) > maxName || !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
				return invalid("%s: %q is no name", list.name, short(name))
			}
		}
		slices.Sort(*list.names)
		*list.names = slices.Compact(*list.names)
	}
	if len(c.PIDs) > maxList {
		return invalid("pids: %d numbers, at most %d are taken", len(c.PIDs), maxList)
	}
	for _, pid := range c.PIDs {
		if pid <= 0 {
			return invalid("pids: %d is no process", pid)
		}
	}
	slices.Sort(c.PIDs)
	c.PIDs = slices.Compact(c.PIDs)
	_, wrong := timeout(c.Timeout, 0)
	return wrong
}

// timeout is a number of seconds as a duration.
func timeout(seconds *float64, missing time.Duration) (time.Duration, *refusal) {
	if seconds == nil {
		return missing, nil
	}
	// NaN fails the first comparison too.
	if !(*seconds > 0) || *seconds > maxTimeout.Seconds() {
		return 0, invalid("timeout_s is %v, want seconds above 0 and at most %v", *seconds, maxTimeout.Seconds())
	}
	return max(time.Duration(math.Round(*seconds*float64(time.Second))), time.Millisecond), nil
}

// key is the Idempotency-Key of a request, or empty.
func key(h http.Header) (string, *refusal) {
	all := h.Values("Idempotency-Key")
	if len(all) == 0 {
		return "", nil
	}
	k := all[0]
	if len(all) > 1 || k == "" || len(k) > maxKey || strings.ContainsFunc(k, func(r rune) bool { return r < ' ' || r > '~' }) {
		return "", invalid("Idempotency-Key: want one, of 1 to %d printable characters", maxKey)
	}
	return k, nil
}

// query reads the parameters of a URL; those that are not named are refused.
type query struct {
	values url.Values
	wrong  *refusal
}

func queryOf(r *http.Request, names ...string) *query {
	values, err := url.ParseQuery(r.URL.RawQuery)
	q := &query{values: values}
	if err != nil {
		q.wrong = invalid("the query cannot be read: %s", short(oneLine(err)))
		return q
	}
	for name, list := range values {
		if !slices.Contains(names, name) {
			q.wrong = invalid("no such parameter: %q", short(name))
			q.wrong.Known = names
			return q
		}
		if len(list) > 1 {
			q.wrong = invalid("%s is there %d times", name, len(list))
			return q
		}
	}
	return q
}

// seconds is a parameter such as timeout_s.
func (q *query) seconds(name string, missing, most time.Duration) time.Duration {
	text := q.values.Get(name)
	if text == "" || q.wrong != nil {
		return missing
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || !(n > 0) || n > most.Seconds() {
		q.wrong = invalid("%s: %q, want seconds above 0 and at most %v", name, short(text), most.Seconds())
		return missing
	}
	return max(time.Duration(n*float64(time.Second)), time.Millisecond)
}

// number is a parameter such as limit.
func (q *query) number(name string, missing, most int) int {
	text := q.values.Get(name)
	if text == "" || q.wrong != nil {
		return missing
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > most {
		q.wrong = invalid("%s: %q, want a number from 0 to %d", name, short(text), most)
		return missing
	}
	return n
}

// String is a request in words, for the log.
func (c command) String() string {
	var parts []string
	for _, list := range []struct {
		name  string
		names []string
	}{{"tags", c.Tags}, {"roles", c.Roles}, {"ranks", c.Ranks}, {"cells", c.Cells}, {"jobs", c.Jobs}} {
		if len(list.names) > 0 {
			parts = append(parts, fmt.Sprintf("%s=%s", list.name, short(strings.Join(list.names, ","))))
		}
	}
	if len(c.PIDs) > 0 {
		parts = append(parts, fmt.Sprintf("pids=%s", short(fmt.Sprint(c.PIDs))))
	}
	if len(parts) == 0 {
		return "all"
	}
	return strings.Join(parts, " ")
}
