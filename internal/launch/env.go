package launch

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"strings"
)

// Formats of ebb env.
const (
	FormatShell  = "shell"
	FormatJSON   = "json"
	FormatDotenv = "dotenv"
)

// EnvRequest asks for the settings of one rank that another launcher starts.
type EnvRequest struct {
	Options
	Rank       int  // negative: as the outer launcher says
	RanksGiven bool // --nproc-per-node was given: the ranks are those of ebb run
	Environ    []string
	Log        *slog.Logger
}

// Say tells the user in one line what need not stop anything.
func (req EnvRequest) Say(line string) { req.Log.Warn(line) }

// EnvSettings composes what ebb run or ebb exec would set for a rank, as far as it holds
// without a supervisor: there is no lease, and the directory is made by the rank itself. The
// ranks may run elsewhere, so what is wrong with the directory here is only said.
func EnvSettings(req EnvRequest) ([]Setting, error) {
	getenv := Lookup(req.Environ)
	libs, err := FindLibraries("/proc/self/exe", getenv)
	if err != nil {
		return nil, err
	}
	outer, err := Detect(getenv)
	if err != nil {
		return nil, err
	}
	r := Rank{
		Role: req.Role, Cell: req.Cell, Job: req.Job,
		Rank: req.Rank, LocalRank: -1, World: -1, LocalWorld: -1,
	}
	switch {
	case req.RanksGiven && r.Rank >= req.Ranks:
		return nil, Usagef("--rank %d is not below --nproc-per-node %d", r.Rank, req.Ranks)
	case req.RanksGiven && r.Rank >= 0:
		r.LocalRank, r.World, r.LocalWorld, r.OwnWorld = r.Rank, req.Ranks, req.Ranks, true
	case r.Rank < 0 && outer.Launcher != "":
		r.Rank, r.LocalRank, r.World, r.LocalWorld = outer.Rank, outer.LocalRank, outer.World, outer.LocalWorld
		if line := contradiction(outer, getenv); line != "" {
			req.Say(line)
		}
	case r.Rank < 0:
		return nil, Usagef("which rank? give --rank, or run it under a launcher that tells")
	}
	if r.Job == "" {
		if r.Job, err = DefaultJob(outer, getenv); err != nil {
			return nil, err
		}
	}
	if err := req.Validate(max(r.LocalWorld, 1), Memory()); err != nil {
		return nil, err
	}
	// A rank that runs here keeps to the memory by itself.
	if _, warning := req.capHost(r.LocalWorld); warning != "" {
		req.Say(warning)
	}
	if err := r.checkIdentity(); err != nil {
		return nil, err
	}
	if err := libs.Check(req.Options); err != nil {
		return nil, err
	}
	disks := NewDisks(getenv)
	places, err := disks.places(req.Options, getenv, os.Getuid(), req.Say)
	if err != nil {
		return nil, err
	}
	for _, base := range places.All {
		warning, err := disks.checkPlace(places, base, req.AllowRAM)
		if err != nil {
			warning = err.Error()
		}
		if warning != "" {
			req.Say(warning)
		}
	}
	r.Dirs, r.StateDirs = r.paths(places.Disk), r.paths(places.State)
	if err := CheckEventLog(req.EventLog); err != nil {
		req.Say(err.Error())
	}
	settings, err := Settings(req.Options, libs, r, getenv)
	if err != nil {
		return nil, err
	}
	if line := overridden(settings, getenv); line != "" {
		req.Say(line)
	}
	return settings, nil
}

// paths are the rank's directories in several disk directories, in its order.
func (r Rank) paths(bases []string) (dirs []string) {
	for _, base := range BasesOf(bases, r) {
		dirs = append(dirs, r.identity().Path(base))
	}
	return dirs
}

// WriteSettings writes settings in a format. Where the format cannot remove a variable it is
// set to nothing, which means the same to ebb.
func WriteSettings(w io.Writer, format string, settings []Setting) error {
	var text strings.Builder
	switch format {
	case FormatJSON:
		object := make(map[string]string, len(settings))
		for _, s := range settings {
			object[s.Name] = s.Value
		}
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(object); err != nil {
			return failf(StatusInternal, "composing the output: %w", err)
		}
	case FormatDotenv:
		for _, s := range settings {
			fmt.Fprintf(&text, "%s=%s\n", s.Name, quoteDotenv(s.Value))
		}
	default:
		for _, s := range settings {
			if s.Unset {
				fmt.Fprintf(&text, "unset %s\n", s.Name)
			} else {
				fmt.Fprintf(&text, "export %s=%s\n", s.Name, quoteShell(s.Value))
			}
		}
	}
	if _, err := io.WriteString(w, text.String()); err != nil {
		return failf(StatusInternal, "writing the output: %w", err)
	}
	return nil
}

var plain = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]*$`)

// quoteShell quotes for sh.
func quoteShell(s string) string {
	if plain.MatchString(s) && s != "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// quoteDotenv quotes for the readers of .env files, which agree on double quotes.
func quoteDotenv(s string) string {
	if plain.MatchString(s) {
		return s
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, `$`, `\$`).Replace(s) + `"`
}
