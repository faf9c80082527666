package rankdir

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestPaths(t *testing.T) {
	id := Identity{Job: "run-7", Role: "actor", Cell: 2, Rank: 13}
	for got, want := range map[string]string{
		id.Path("/d"):       "/d/run-7/actor_cell2_rank13",
		id.LeasePath("/d"):  "/d/.ebb/run-7__actor_cell2_rank13.lease",
		id.MarkerPath("/d"): "/d/.ebb/run-7__actor_cell2_rank13.marker",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestBadIdentities(t *testing.T) {
	good := Identity{Job: "job", Role: "actor"}
	for _, c := range []struct {
		field string
		value string
		set   func(*Identity, string)
	}{
		{"job", "", setJob}, {"job", "a/b", setJob}, {"job", "a b", setJob}, {"job", "a\nb", setJob}, {"job", "a\x00", setJob},
		{"job", ".", setJob}, {"job", "..", setJob}, {"job", ".ebb", setJob}, {"job", "-x", setJob}, {"job", "a\\b", setJob},
		{"job", "jöb", setJob}, {"job", "a\xff", setJob}, {"job", "a$b", setJob}, {"job", strings.Repeat("x", 101), setJob},
		{"role", "", setRole}, {"role", "a/b", setRole}, {"role", "../x", setRole}, {"role", "a\tb", setRole}, {"role", ".a", setRole},
		{"role", "-a", setRole}, {"role", "_a", setRole}, {"role", "a_", setRole}, {"role", "a__b", setRole}, {"role", strings.Repeat("x", 61), setRole},
	} {
		id := good
		c.set(&id, c.value)
		err := id.Validate()
		var bad *IdentityError
		if !errors.As(err, &bad) || bad.Field != c.field || bad.Value != c.value || strings.ContainsAny(err.Error(), "\n\x00") {
			t.Errorf("%s %q: %v, want one line that names both", c.field, c.value, err)
		}
	}
	for _, id := range []Identity{{"job", "actor", -1, 0}, {"job", "actor", 0, -1}, {"job", "actor", 1_000_000_000, 0}} {
		if err := id.Validate(); err == nil {
			t.Errorf("%v is taken", id)
		}
	}
	for _, id := range []Identity{good, {"12345_6", "ref.model-2", 0, 0}, {"a__b_", "x_y", 7, 999_999_999}, {strings.Repeat("x", 100), strings.Repeat("y", 60), 999_999_999, 999_999_999}} {
		if err := id.Validate(); err != nil {
			t.Errorf("%v: %v", id, err)
		}
		if n := len(id.key() + markerSuffix + tempSuffix); n > 255 {
			t.Errorf("%v makes a name of %d bytes", id, n)
		}
	}
}

func setJob(id *Identity, v string)  { id.Job = v }
func setRole(id *Identity, v string) { id.Role = v }

// TestIdentitiesDoNotShareNames draws from few characters, so that near misses are common.
func TestIdentitiesDoNotShareNames(t *testing.T) {
	draw := func(t *rapid.T, label string) Identity {
		id := Identity{
			Job:  rapid.StringMatching(`[a0][a0_.-]{0,6}`).Draw(t, label+" job"),
			Role: rapid.StringMatching(`[a0_][a0_.-]{0,6}(_cell[01])?(_rank[01])?`).Draw(t, label+" role"),
			Cell: rapid.IntRange(0, 1).Draw(t, label+" cell"),
			Rank: rapid.IntRange(0, 1).Draw(t, label+" rank"),
		}
		if id.Validate() != nil {
			t.Skip("not valid")
		}
		return id
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t, "a"), draw(t, "b")
		if a != b && (a.key() == b.key() || a.Path("/d") == b.Path("/d")) {
			t.Fatalf("%#v and %#v share %s", a, b, a.key())
		}
		if got, ok := parseKey(a.key()); !ok || got != a {
			t.Fatalf("%s: %#v %v, want %#v", a.key(), got, ok, a)
		}
	})
}
