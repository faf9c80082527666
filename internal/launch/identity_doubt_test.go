package launch

import (
	"bytes"
	"strings"
	"testing"

	"github.com/ebb-offload/ebb/internal/rankdir"
)

// execRank is the rank that ebb exec takes itself for, and what it says of it.
func execRank(env string, given int) (Rank, string, error) {
	var said bytes.Buffer
	getenv := environment(env)
	req := Request{Options: NewOptions(), Exec: true, Rank: given, Log: NewLog(&said, LogText)}
	ranks, err := req.ranks(getenv)
	if err != nil {
		return Rank{}, said.String(), err
	}
	return ranks[0], said.String(), nil
}

// Without its rank every process of the job would be rank 0, in the directories of rank 0.
func TestAMissingRankBesideTheOtherVariablesIsRefused(t *testing.T) {
	for env, words := range map[string][]string{
		"LOCAL_RANK=1":                 {"LOCAL_RANK=1, and no RANK", "--rank"},
		"WORLD_SIZE=8":                 {"WORLD_SIZE=8, and no RANK"},
		"LOCAL_RANK=0 WORLD_SIZE=8":    {"LOCAL_RANK=0 and WORLD_SIZE=8, and no RANK"},
		"LOCAL_RANK=x":                 {"LOCAL_RANK=x, and no RANK"},
		"OMPI_COMM_WORLD_SIZE=2":       {"OMPI_COMM_WORLD_SIZE=2, and no OMPI_COMM_WORLD_RANK"},
		"MPI_LOCALRANKID=1 PMI_SIZE=2": {"MPI_LOCALRANKID=1 and PMI_SIZE=2, and no PMI_RANK"},
	} {
		_, _, err := execRank(env, -1)
		if StatusOf(err) != StatusUsage {
			t.Errorf("%s: %v", env, err)
			continue
		}
		for _, word := range words {
			refusal(t, err, word)
		}
		if r, said, err := execRank(env, 3); err != nil || r.Rank != 3 || said != "" { // as the remedy says
			t.Errorf("%s with --rank 3: %+v, %q, %v", env, r, said, err)
		}
	}
	for _, env := range []string{"", "LOCAL_RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=10.0.0.1 MASTER_PORT=1", "SLURM_PROCID=0 SLURM_NTASKS=8 SLURM_JOB_ID=4"} {
		r, said, err := execRank(env, -1)
		if err != nil || r.Rank != 0 || r.World != 1 || !strings.Contains(said, "rank 0 of 1") {
			t.Errorf("%s: %+v, %q, %v; want a process of its own, and that said", env, r, said, err)
		}
	}
}

// The remedy of a rank that is not below its world size is a rank that is.
func TestARankThatIsGivenReplacesTheLaunchers(t *testing.T) {
	const env = "RANK=8 WORLD_SIZE=8 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4"
	if _, _, err := execRank(env, -1); StatusOf(err) != StatusUsage {
		t.Errorf("%v", err)
	}
	if r, _, err := execRank(env, 7); err != nil || r.Rank != 7 || r.World != 8 || r.LocalRank != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	_, _, err := execRank("RANK=0 WORLD_SIZE=8", 8)
	refusal(t, err, "rank 8 of torchrun is not below its world size 8: correct the variables, or give a --rank that is")
}

// One task of a node starts the node's ranks: the task's place is none of theirs.
func TestARankThatATaskStartsHasNotTheTasksPlace(t *testing.T) {
	for _, env := range []string{
		"SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_STEP_ID=0 SLURM_JOB_ID=7",
		"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=1",
	} {
		outer, err := DetectRank(environment(env), 5)
		if err != nil || outer.Rank != 5 || outer.LocalRank != -1 || outer.World != -1 || outer.LocalWorld != -1 {
			t.Errorf("%s with --rank 5: %+v, %v", env, outer, err)
		}
		if outer, err = DetectRank(environment(env), 1); err != nil || outer.Rank != 1 || outer.LocalRank != 0 || outer.World != 2 || outer.LocalWorld != 1 {
			t.Errorf("%s with the same --rank: %+v, %v", env, outer, err)
		}
	}
}

func TestTwoLaunchersThatContradictEachOtherAreNamedOnceAndTheInnerOneCounts(t *testing.T) {
	for env, c := range map[string]struct {
		rank  int
		words []string
	}{
		// srun of eight tasks, each with a torchrun of its own.
		"RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 GROUP_WORLD_SIZE=1 SLURM_PROCID=5 SLURM_NTASKS=8 SLURM_STEP_ID=0 SLURM_JOB_ID=7": {
			0, []string{"RANK=0 of 1 (torchrun)", "SLURM_PROCID=5 of 8 (Slurm)", "the first counts", "unset RANK"}},
		// A variable that a profile left behind.
		"RANK=0 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1": {
			0, []string{"RANK=0 (torchrun)", "OMPI_COMM_WORLD_RANK=3 of 4 (Open MPI)"}},
		"RANK=2 WORLD_SIZE=4 JOB_COMPLETION_INDEX=1": {2, []string{"RANK=2 of 4 (torchrun)", "JOB_COMPLETION_INDEX=1 (Kubernetes)"}},
		"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_STEP_ID=0 SLURM_JOB_ID=7": {
			1, []string{"OMPI_COMM_WORLD_RANK=1 of 4 (Open MPI)", "SLURM_PROCID=2 of 4 (Slurm)", "unset OMPI_COMM_WORLD_RANK"}},
		// Three of them: one line all the same.
		"RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_STEP_ID=0": {
			0, []string{"OMPI_COMM_WORLD_RANK=1 of 2"}},
	} {
		r, said, err := execRank(env, -1)
		if err != nil || r.Rank != c.rank {
			t.Errorf("%s: %+v, %v", env, r, err)
		}
		if strings.Count(said, "\n") != 1 {
			t.Errorf("%s: want one line, said:\n%s", env, said)
		}
		for _, word := range c.words {
			if !strings.Contains(said, word) {
				t.Errorf("%s: %q is not in %s", env, word, said)
			}
		}
		// Who says which rank it is has decided.
		if _, said, err := execRank(env, 0); err != nil || said != "" {
			t.Errorf("%s with --rank 0: %q, %v", env, said, err)
		}
	}
}

func TestLaunchersThatNestAsTheyShouldAreNotMentioned(t *testing.T) {
	const slurm = " SLURM_STEP_ID=0 SLURM_JOB_ID=7 "
	for name, env := range map[string]string{
		"torchrun on each of two nodes of Slurm":            "RANK=5 LOCAL_RANK=0 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 SLURM_PROCID=1 SLURM_NTASKS=2" + slurm,
		"torchrun that orders the nodes as it likes":        "RANK=4 LOCAL_RANK=0 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2 SLURM_PROCID=0 SLURM_NTASKS=2" + slurm,
		"torchrun in a pod of an indexed job":               "RANK=8 LOCAL_RANK=0 WORLD_SIZE=16 LOCAL_WORLD_SIZE=8 GROUP_WORLD_SIZE=2 JOB_COMPLETION_INDEX=1",
		"DeepSpeed on each of two nodes of Slurm":           "RANK=2 LOCAL_RANK=0 WORLD_SIZE=4 LOCAL_SIZE=2 CROSS_SIZE=2 SLURM_PROCID=1 SLURM_NTASKS=2" + slurm,
		"mpirun whose daemons Slurm started":                "OMPI_COMM_WORLD_RANK=4 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_SIZE=12 OMPI_COMM_WORLD_LOCAL_SIZE=4 SLURM_PROCID=0 SLURM_NTASKS=2" + slurm,
		"srun with PMIx":                                    "PMIX_RANK=1 PMIX_NAMESPACE=slurm.pmix.7.0 SLURM_PROCID=1 SLURM_NTASKS=2" + slurm,
		"Open MPI, which is PMIx too":                       "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=1@1",
		"variables that a script made of Slurm's":           "RANK=3 WORLD_SIZE=4 LOCAL_RANK=0 SLURM_PROCID=3 SLURM_NTASKS=4" + slurm,
		"an operator that numbers pods as the job does":     "RANK=1 WORLD_SIZE=2 JOB_COMPLETION_INDEX=1",
		"a second rank of a node whose first one said it":   "RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_WORLD_SIZE=1 SLURM_PROCID=5 SLURM_NTASKS=8" + slurm,
		"what runs inside a rank of ebb, in a world of its": "EBB_RUN=1-2 EBB_JOB=j RANK=0 WORLD_SIZE=1 SLURM_PROCID=5 SLURM_NTASKS=8" + slurm,
		"an outer one whose variables are broken":           "RANK=1 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=x",
	} {
		if _, said, err := execRank(env, -1); err != nil || said != "" {
			t.Errorf("%s: %q, %v", name, said, err)
		}
	}
}

// Whatever a launcher calls its job, its ranks have a directory below that name, and no other job's.
func TestJobsWithNamesThatAreNoDirectoriesStayApart(t *testing.T) {
	seen := map[string]string{}
	for _, id := range []string{"exp 7", "exp/7", "exp-7", "../exp", "/", ".", "..", "a\tb", "a\nb", "-x", "ä", strings.Repeat("x", 300)} {
		for _, place := range []string{"RANK=0", "OMPI_COMM_WORLD_RANK=0"} {
			environ := append(strings.Fields(place), "TORCHELASTIC_RUN_ID="+id, "PMIX_NAMESPACE="+id)
			getenv := Lookup(environ)
			outer, err := Detect(getenv)
			if err != nil {
				t.Fatal(err)
			}
			job, err := DefaultJob(outer, getenv)
			if err != nil {
				t.Fatal(err)
			}
			if other, taken := seen[job]; taken {
				t.Errorf("%q of %s and %s are both %q", id, place, other, job)
			}
			seen[job] = id
			identity := rankdir.Identity{Job: job, Role: "actor"}
			if err := identity.Validate(); err != nil {
				t.Errorf("%q is called %q: %v", id, job, err)
			}
			if path := identity.Path("/disk"); !strings.HasPrefix(path, "/disk/"+job+"/") {
				t.Errorf("%q has its files in %s", id, path)
			}
		}
	}
	// A name that a user gives is kept as it is, or refused.
	for _, name := range []string{"a/b", "a b", "..", ""} {
		if err := (rankdir.Identity{Job: name, Role: "actor"}).Validate(); err == nil {
			t.Errorf("%q is taken for a name", name)
		}
	}
}
