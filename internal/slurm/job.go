package slurm

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ID names a job as users do: 1234, 1234_5 of an array, 1234+1 of a heterogeneous job.
type ID string

var idForm = regexp.MustCompile(`^[0-9]{1,10}([_+][0-9]{1,10})?$`)

// ParseID takes the name of a job. What is no such name never reaches a command.
func ParseID(text string) (ID, error) {
	if !idForm.MatchString(text) {
		return "", fmt.Errorf("must be the number of a job, such as 1234, 1234_5 of an array, or 1234+1 of a heterogeneous job (a step has none of its own)")
	}
	return ID(text), nil
}

// Part is a job as Slurm runs it: a whole one, an element of an array, or a component of a heterogeneous job.
type Part struct {
	Number string // of its own, which srun takes
	Name   string // 1234, 1234_5, 1234+1
	State  string // RUNNING, PENDING, …
	UID    int
	List   string   // of its nodes, as Slurm writes it: node[1-3,7]
	Nodes  []string // List, name by name
}

// leader is the number by which srun is told which part is meant, with the component of a heterogeneous job, else -1.
func (p Part) leader() (number string, group int) {
	whole, component, het := strings.Cut(p.Name, "+")
	if k, err := strconv.Atoi(component); het && err == nil {
		return whole, k
	}
	return p.Number, -1
}

// Numbers are what the processes of the parts may have in SLURM_JOB_ID.
func Numbers(parts []Part) (numbers []string) {
	for _, p := range parts {
		leader, _ := p.leader()
		numbers = append(numbers, p.Number, leader)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// partFormat is that of parseParts, for squeue.
const partFormat = "%A|%i|%T|%U|%N"

// Find asks Slurm for the parts of a job, all of which run and are the calling user's.
func Find(ctx context.Context, id ID) ([]Part, error) {
	text, err := output(ctx, "squeue", "--noheader", "--states=all", "--jobs="+string(id), "--format="+partFormat)
	switch {
	case err != nil && strings.Contains(err.Error(), "Invalid job id"):
		return nil, errorf(Wrong, "Slurm knows no job %s, or it ended long ago: squeue --me lists those that run", id)
	case err != nil:
		return nil, asking(ctx, "job "+string(id), err)
	}
	parts, err := parseParts(text)
	if err != nil {
		return nil, errorf(Unknown, "what squeue says of job %s is not understood: %w", id, err)
	}
	if parts, err = choose(id, parts, os.Getuid()); err != nil {
		return nil, err
	}
	for i := range parts {
		names, err := output(ctx, "scontrol", "show", "hostnames", parts[i].List)
		if err != nil {
			return nil, asking(ctx, "the nodes "+parts[i].List, err)
		}
		if parts[i].Nodes, err = parseNames(names); err != nil {
			return nil, errorf(Unknown, "the nodes %s of job %s: %w", parts[i].List, id, err)
		}
	}
	return parts, nil
}

// asking is the error where Slurm does not answer.
func asking(ctx context.Context, what string, err error) error {
	if e, ours := err.(*Error); ours || ctx.Err() != nil { //nolint:errorlint // find returns it as it is
		if ours {
			return e
		}
		return err
	}
	return errorf(Unknown, "Slurm does not tell about %s: %w; is slurmctld up (scontrol ping)?", what, err)
}

// parseParts reads lines of partFormat.
func parseParts(text string) ([]Part, error) {
	var parts []Part
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		f := strings.Split(line, "|")
		if len(f) != 5 {
			return nil, fmt.Errorf("line %.200q has %d fields, not 5", line, len(f))
		}
		if _, err := strconv.ParseUint(f[0], 10, 32); err != nil {
			return nil, fmt.Errorf("line %.200q does not begin with a number", line)
		}
		uid, err := strconv.ParseUint(f[3], 10, 32)
		if err != nil {
			return nil, fmt.Errorf("line %.200q has no number of a user", line)
		}
		parts = append(parts, Part{Number: f[0], Name: f[1], State: f[2], UID: int(uid), List: f[4]})
	}
	return parts, nil
}

// choose takes what is meant of the parts that Slurm has under a name, or says why there is nothing to reach.
func choose(id ID, parts []Part, uid int) ([]Part, error) {
	if len(parts) == 0 {
		return nil, errorf(Wrong, "Slurm has no job %s: squeue --me lists those that run", id)
	}
	if i := slices.IndexFunc(parts, func(p Part) bool { return p.Name == string(id) }); i >= 0 {
		parts = parts[i : i+1] // for one component squeue lists all
	}
	if len(parts) > 1 && strings.Contains(parts[0].Name, "_") {
		return nil, errorf(Wrong, "job %s is an array: name one of its jobs, such as %s (squeue --me --array)", id, running(parts).Name)
	}
	for _, p := range parts {
		switch {
		case p.UID != uid && uid == 0:
			return nil, errorf(Wrong, "job %s is of user %d, and Slurm starts steps in it for nobody else: run the command as that user (runuser -u \"$(id -nu %d)\" -- ebb …)", p.Name, p.UID, p.UID)
		case p.UID != uid:
			return nil, errorf(Wrong, "job %s is of user %d, not yours: Slurm lets nobody else reach its nodes", p.Name, p.UID)
		case p.State == "SUSPENDED":
			return nil, errorf(NotRunning, "job %s is suspended, so all its processes are stopped: scontrol resume %s, then again", p.Name, p.Name)
		case p.State != "RUNNING":
			return nil, errorf(NotRunning, "no rank is running: job %s is %s", p.Name, strings.ToLower(p.State))
		case p.List == "":
			return nil, errorf(NotRunning, "no rank is running: job %s has no node", p.Name)
		}
	}
	return parts, nil
}

// running is one that runs, if there is one.
func running(parts []Part) Part {
	for _, p := range parts {
		if p.State == "RUNNING" {
			return p
		}
	}
	return parts[0]
}

var nodeForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// parseNames reads the names of nodes, each on a line.
func parseNames(text string) ([]string, error) {
	names := strings.Fields(text)
	if len(names) == 0 {
		return nil, fmt.Errorf("no name of a node")
	}
	for _, name := range names {
		if !nodeForm.MatchString(name) || len(name) > maxNode {
			return nil, fmt.Errorf("%.200q is no name of a node", name)
		}
	}
	return names, nil
}
