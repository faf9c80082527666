package launch

import (
	"strings"
	"testing"
)

func environment(pairs string) func(string) string {
	return Lookup(strings.Fields(pairs))
}

func TestLaunchersTellTheRank(t *testing.T) {
	const (
		torchrun = "RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4 TORCHELASTIC_RUN_ID=exp7 "
		slurm    = "SLURM_PROCID=3 SLURM_LOCALID=0 SLURM_NTASKS=4 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=3,1 SLURM_JOB_ID=77 SLURM_STEP_ID=2 "
		openmpi  = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=1234@1 PMIX_RANK=2 "
		k8s      = "JOB_COMPLETION_INDEX=6 HOSTNAME=train-a-6 "
	)
	for name, c := range map[string]struct {
		env  string
		want Outer
	}{
		"none":                       {"PATH=/bin", Outer{"", -1, -1, -1, -1, ""}},
		"torchrun":                   {torchrun, Outer{"torchrun", 5, 1, 8, 4, "torchrun-exp7"}},
		"torchrun without a run id":  {"RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none", Outer{"torchrun", 0, 0, 2, 2, ""}},
		"Slurm":                      {slurm, Outer{"Slurm", 3, 0, 4, 1, "slurm-77.2"}},
		"Slurm, older names":         {"SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=6 SLURM_NODEID=2 SLURM_TASKS_PER_NODE=2(x2),1,1 SLURM_JOB_ID=8 SLURM_STEPID=0", Outer{"Slurm", 0, 0, 6, 1, "slurm-8.0"}},
		"Slurm batch script":         {"SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=4 SLURM_JOB_ID=77", Outer{"", -1, -1, -1, -1, "slurm-77"}},
		"Open MPI":                   {openmpi, Outer{"Open MPI", 2, 0, 4, 2, "mpi-1234@1"}},
		"PMI":                        {"PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", Outer{"PMI", 1, 1, 2, 2, ""}},
		"PMIx":                       {"PMIX_RANK=1 PMIX_NAMESPACE=ns", Outer{"PMI", 1, -1, -1, -1, "mpi-ns"}},
		"srun with PMIx":             {slurm + "PMIX_RANK=3 PMIX_NAMESPACE=slurm.pmix.77.2", Outer{"Slurm", 3, 0, 4, 1, "slurm-77.2"}},
		"srun with PMI2":             {slurm + "PMI_RANK=3 PMI_SIZE=4 PMI_JOBID=77.2", Outer{"Slurm", 3, 0, 4, 1, "slurm-77.2"}},
		"srun with PMI, no job":      {slurm + "PMI_RANK=3 PMI_SIZE=4", Outer{"Slurm", 3, 0, 4, 1, "slurm-77.2"}},
		"mpiexec by PMIx in Slurm":   {slurm + "PMIX_RANK=5 PMIX_NAMESPACE=prterun-n1-7@1", Outer{"PMI", 5, -1, -1, -1, "mpi-prterun-n1-7@1"}},
		"mpiexec by PMI in Slurm":    {slurm + "PMI_RANK=3 PMI_SIZE=8", Outer{"PMI", 3, -1, 8, -1, "slurm-77.2"}},
		"mpiexec of one rank a node": {slurm + "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1", Outer{"PMI", 3, 0, 4, 1, "slurm-77.2"}},
		"mpiexec of another step":    {slurm + "PMI_RANK=3 PMI_SIZE=4 PMI_JOBID=77.1", Outer{"PMI", 3, -1, 4, -1, "mpi-77.1"}},
		"components of a step, 1 and 2 tasks a node": {"SLURM_PROCID=2 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=3 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=1(x2) SLURM_JOB_ID=77 SLURM_STEP_ID=0",
			Outer{"Slurm", 2, 1, 3, -1, "slurm-77.0"}},
		"Ray":                       {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 RAY_JOB_ID=02000000", Outer{"torchrun", 1, 1, 2, -1, "ray-02000000"}},
		"Kubernetes":                {k8s, Outer{"Kubernetes", 6, 0, -1, 1, "k8s-train-a"}},
		"torchrun in Slurm":         {torchrun + slurm, Outer{"torchrun", 5, 1, 8, 4, "torchrun-exp7"}},
		"unnamed torchrun in Slurm": {"RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 TORCHELASTIC_RUN_ID=none " + slurm, Outer{"torchrun", 0, 0, 1, 1, "slurm-77.2"}},
		"mpirun in Slurm":           {openmpi + slurm, Outer{"Open MPI", 2, 0, 4, 2, "mpi-1234@1"}},
		"srun in Kubernetes":        {slurm + k8s, Outer{"Slurm", 3, 0, 4, 1, "slurm-77.2"}},
		"torchrun in Kubernetes":    {torchrun + k8s, Outer{"torchrun", 5, 1, 8, 4, "torchrun-exp7"}},
		"DeepSpeed":                 {"RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_SIZE=4 CROSS_RANK=1 CROSS_SIZE=2", Outer{"torchrun", 5, 1, 8, 4, ""}},
		"accelerate":                {"ACCELERATE_MIXED_PRECISION=no ACCELERATE_DYNAMO_BACKEND=NO " + torchrun, Outer{"torchrun", 5, 1, 8, 4, "torchrun-exp7"}},
		"accelerate, one process":   {"ACCELERATE_USE_CPU=True MASTER_ADDR=127.0.0.1 MASTER_PORT=29500", Outer{"", -1, -1, -1, -1, ""}},
		"a rank and nothing else":   {"RANK=3", Outer{"torchrun", 3, -1, -1, -1, ""}},
		"empty is unset":            {"RANK= SLURM_PROCID= JOB_COMPLETION_INDEX=", Outer{"", -1, -1, -1, -1, ""}},
	} {
		got, err := Detect(environment(c.env))
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
	}
}

func TestRanksThatCannotBe(t *testing.T) {
	for env, word := range map[string]string{
		"RANK=a WORLD_SIZE=2":   "RANK=a",
		"RANK=-1":               "RANK=-1",
		"RANK=0 WORLD_SIZE=two": "WORLD_SIZE=two",
		"RANK=2 WORLD_SIZE=2":   "rank 2 of torchrun is not below its world size 2",
		"OMPI_COMM_WORLD_RANK=9 OMPI_COMM_WORLD_SIZE=4":                "rank 9 of Open MPI",
		"RANK=2 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2":          "local rank 2 of torchrun is not below the 2 ranks",
		"RANK=0 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_SIZE=1":                "is not below the 1 rank that",
		"SLURM_PROCID=4 SLURM_NTASKS=4 SLURM_STEP_ID=0 SLURM_JOB_ID=1": "rank 4 of Slurm",
		"RANK=99999999999999999999":                                    "RANK=99999999999999999999",
		"SLURM_PROCID=1.5 SLURM_STEP_ID=0":                             "SLURM_PROCID=1.5",
		"JOB_COMPLETION_INDEX=seven":                                   "JOB_COMPLETION_INDEX=seven",
		"OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=z":          "OMPI_COMM_WORLD_LOCAL_RANK=z",
	} {
		_, err := Detect(environment(env))
		refusal(t, err, word)
	}
}

func TestSlurmTaskListsThatTellNothing(t *testing.T) {
	for _, env := range []string{
		"SLURM_NODEID=0", "SLURM_TASKS_PER_NODE=3", "SLURM_NODEID=5 SLURM_TASKS_PER_NODE=2(x2)",
		"SLURM_NODEID=0 SLURM_TASKS_PER_NODE=x", "SLURM_NODEID=0 SLURM_TASKS_PER_NODE=2(xq)", "SLURM_NODEID=n SLURM_TASKS_PER_NODE=2",
	} {
		if n := slurmLocalWorld(environment(env)); n != -1 {
			t.Errorf("%s: %d tasks", env, n)
		}
	}
}

func TestJobNames(t *testing.T) {
	for in, want := range map[string]string{"slurm-77.2": "slurm-77.2", "exp_7": "exp_7"} {
		if got := jobName(in, ""); got != want {
			t.Errorf("%q becomes %q, want it kept", in, got)
		}
	}
	// Names that cannot be kept stay apart, and are names of directories.
	seen := map[string]string{}
	for _, in := range []string{
		"a/b", "a b", "a-b", "a:b", "../x", ".x", "x", "-x", "ä", "ö", "1234@1", "1234@2",
		strings.Repeat("l", 200), strings.Repeat("l", 200) + "2", "/", ".",
	} {
		for _, unique := range []string{"", "12-34-abcdef01"} {
			got := jobName(in, unique)
			if other, taken := seen[got]; taken {
				t.Errorf("%q and %q both become %q", in, other, got)
			}
			seen[got] = in
			if err := (Rank{Job: got, Role: "actor"}).checkIdentity(); err != nil {
				t.Errorf("%q becomes %q: %v", in, got, err)
			}
		}
	}
}

func TestDefaultJob(t *testing.T) {
	job := func(env string) string {
		t.Helper()
		getenv := environment(env)
		outer, err := Detect(getenv)
		if err != nil {
			t.Fatal(err)
		}
		name, err := DefaultJob(outer, getenv)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	if got := job("SLURM_JOB_ID=9"); got != "slurm-9" {
		t.Errorf("in a Slurm job: %q", got)
	}
	if got := job(""); !strings.HasPrefix(got, "run-") || len(got) < len("run-1-1-00000000") {
		t.Errorf("without a launcher: %q, want a name of its own", got)
	}
	inner := job("EBB_RUN=5 EBB_JOB=slurm-9 EBB_RANK=0 SLURM_JOB_ID=9 RANK=0")
	if inner == "slurm-9" || !strings.HasPrefix(inner, "slurm-9-") {
		t.Errorf("inside another run: %q, want a new name below slurm-9", inner)
	}
}

func TestAWiderJobAroundARunIsNoticed(t *testing.T) {
	for env, want := range map[string]bool{
		"":                          false,
		"RANK=0 WORLD_SIZE=4":       false,
		"RANK=4 WORLD_SIZE=5":       true,
		"WORLD_SIZE=5":              true,
		"WORLD_SIZE=x":              false,
		"SLURM_NNODES=1":            false,
		"SLURM_NNODES=2":            true,
		"SLURM_JOB_NUM_NODES=2":     true,
		"RANK=0 GROUP_WORLD_SIZE=2": true,
		"SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=8":  true,
		"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=8":  true,
		"EBB_RUN=1-2 RANK=0 WORLD_SIZE=8 SLURM_NNODES=2": false,
	} {
		getenv := environment(env)
		outer, err := Detect(getenv)
		if err != nil {
			t.Fatal(err)
		}
		if got := wider(outer, 4, getenv); got != want {
			t.Errorf("4 ranks in %q: %v, want %v", env, got, want)
		}
	}
}
