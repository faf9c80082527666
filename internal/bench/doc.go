// Package bench measures ebb against the raw limits of the same hardware, interleaved in one run:
// raw O_DIRECT files against pauses and resumes to disk, pinned copies against those to host memory,
// and, where asked for, another library of torch_memory_saver's names beside ebb's.
//
// What is measured happens in processes of the C program ebb-bench-rank (bench/), which this
// package starts, commands and times. A run reads:
//
//	options.go      what was asked for
//	directory.go    the disk directories, and whether they may be used
//	folder.go       the folder of a run and its removal; marker.go: the proof that a run made it
//	against.go      the other library; runtime.go: the CUDA runtime
//	room.go         what a run takes, checked before it begins
//	run.go          experiments one after the other
//	rank.go         one process; actor.go: an actor's memory in it; rawdisk.go: raw arms
//	cycles.go       rows whose actors share their rounds; experiments.go: the others
//	rows.go         the rows, and which experiment gives each
//	stats.go        medians and intervals (pure)
//	report.go, text.go, svg.go   the result (pure)
//
// Sizes are bytes, times seconds, and GB are 1e9 bytes.
package bench
