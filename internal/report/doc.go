// Package report makes the page of a job from the event logs of its ranks: when they trained and when they
// were parked, how many bytes went where and how fast, what was skipped, and what failed.
//
//	read.go      files and lines; nothing in a file can stop the rest from being read
//	scan.go      lines as ranks write them, taken apart quickly
//	gather.go    lines to the events of each rank, in little memory
//	process.go   the events of one rank to its processes, their operations and states
//	timeline.go  states over time, in bounded memory
//	waves.go     operations of a host's ranks that overlap: what its disk sees as one
//	figures.go   sums, medians and rates
//	report.go    the whole, which is also the JSON
//	raw.go       what the disk does by itself, to compare with
//	swap.go      the steps of hand-overs, from the log of `ebb swap`
//	page.go      the page; chart.go draws; page.html, page.css and page.js are its parts
//
// Ranks are taken in one after the other, and of each only figures and a timeline of bounded size remain,
// since a job may have a thousand of them with ten thousand cycles each.
package report
