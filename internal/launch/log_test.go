package launch

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestALineForPeopleIsOneLine(t *testing.T) {
	var out bytes.Buffer
	log := NewLog(&out, LogText)
	log.Warn("two\nlines  and spaces", "rank", 3)
	log.With("rank", 3).WithGroup("x").Error("told")
	log.Debug("rank 3 starts")
	if got, want := out.String(), "ebb: two lines and spaces\nebb: told\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestALineForMachinesIsAnObjectWithTheRank(t *testing.T) {
	var out bytes.Buffer
	log := NewLog(&out, LogJSON)
	log.With(testRank.who()...).Debug("rank 3\nstarts")
	log.Error("told")
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	if len(lines) != 2 {
		t.Fatalf("%d lines: %s", len(lines), out.Bytes())
	}
	var first, second struct {
		Level, Msg, Job, Role, Time string
		Rank, Cell                  string
	}
	if err := json.Unmarshal(lines[0], &first); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(lines[1], &second); err != nil {
		t.Fatal(err)
	}
	if first.Level != "info" || first.Msg != "rank 3\nstarts" || first.Job != "exp" || first.Role != "critic" ||
		first.Rank != "3" || first.Cell != "2" || first.Time == "" {
		t.Errorf("%s", lines[0])
	}
	if second.Level != "error" || second.Rank != "" {
		t.Errorf("%s", lines[1])
	}
}
