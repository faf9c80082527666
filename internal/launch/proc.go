package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// procStat is what ebb needs of /proc/<pid>/stat (proc(5)).
type procStat struct {
	pid     int
	state   byte // 'Z' zombie, 'X' dead: of the process's first thread
	pgrp    int
	session int
}

// alive reports whether the process runs: its first thread, or another one after that ended.
func (s procStat) alive() bool {
	if s.state != 'Z' && s.state != 'X' {
		return true
	}
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", s.pid))
	return err == nil && len(tasks) > 1
}

func readStat(pid int) (procStat, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	text, err := os.ReadFile(path)
	if err != nil {
		return procStat{}, err
	}
	s, err := parseStat(text)
	if err != nil {
		return procStat{}, fmt.Errorf("%s: %w", path, err)
	}
	s.pid = pid
	return s, nil
}

// parseStat reads all but the number.
func parseStat(b []byte) (procStat, error) {
	// The name stands in parentheses and may itself hold parentheses and spaces.
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return procStat{}, errors.New("no process name")
	}
	f := strings.Fields(string(b[end+1:])) // f[0] is field 3
	if len(f) < 4 {
		return procStat{}, fmt.Errorf("%d fields after the name", len(f))
	}
	pgrp, err := strconv.Atoi(f[2])
	if err != nil {
		return procStat{}, fmt.Errorf("process group: %w", err)
	}
	session, err := strconv.Atoi(f[3])
	if err != nil {
		return procStat{}, fmt.Errorf("session: %w", err)
	}
	return procStat{state: f[0][0], pgrp: pgrp, session: session}, nil
}

// processes lists the processes that this one can see and that still exist when looked at.
func processes() ([]procStat, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []procStat
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil {
			all = append(all, s)
		}
	}
	return all, nil
}
