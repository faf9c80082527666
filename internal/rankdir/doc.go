// Package rankdir says who a rank is, where its backup files live, and who may remove them.
//
// On disk, under one base directory (the disk directory of a run):
//
//	<base>/<job>/<role>_cell<C>_rank<R>/          rank directory, 0700: data files only
//	<base>/.ebb/<job>__<role>_cell<C>_rank<R>.lease   empty; its locks say who lives
//	<base>/.ebb/<job>__<role>_cell<C>_rank<R>.marker  JSON; proves that ebb made the directory
//	<base>/.ebb/<job>__<role>_cell<C>_rank<R>.<pid>-<start>.map  what the process has parked (package parked)
//	<base>/.ebb/<job>__<role>_cell<C>_rank<R>.<pid>-<start>.control  where its control socket is (package control)
//	<base>/.ebb/usage                                 who holds and wrote how much (package usage)
//
// # Lease
//
// The lease file carries POSIX record locks, which the kernel drops at any death of a process,
// and which a forked child does not inherit:
//
//	byte 0  read-locked by every engine process of the rank (HoldLease)
//	byte 1  write-locked by the rank's supervisor from before the rank starts (NewClaim)
//	byte 2  write-locked for a moment by whoever changes the entry: claim, reclaim, sweep
//
// A rank is dead when bytes 0 and 1 can both be write-locked. Byte 2 makes a claim wait for a
// sweep that is under way, where it would else see the sweep's locks and think the rank alive.
//
// A process loses all its locks on a file when it closes any descriptor of that file. So this
// package keeps one descriptor per lease file and process, whatever is done with it, and
// nothing else in the process may open a lease file.
//
// # Reclaim
//
// Only what ebb can prove it made is removed: in a directory whose marker names that very inode
// and whose lease is dead, plain files of this user whose names are data file names (Owner) and
// whose owner does not live; then the directory, if that left it empty. Nothing is removed
// recursively. What stays is reported, and the marker stays with it.
//
// Where there is no such proof (no lease, no marker, or another directory in the marked one's
// place) only the files go whose names prove a dead owner: one of an earlier boot, one whose
// pid nobody has, or one whose pid a later process has. A process that /proc hides, or whose
// start time is told by the clock of another time namespace, may be the owner.
//
// A base directory may be shared by several nodes, where locks and boot ids of another node
// prove nothing on some file systems. What another boot left is therefore reclaimed only on
// file systems known to be local.
package rankdir
