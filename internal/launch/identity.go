package launch

import (
	"fmt"
	"strconv"
	"strings"
)

// Outer is who this process is under the launcher that started it. Numbers are -1 where the
// launcher does not tell.
type Outer struct {
	Launcher   string // for people: "torchrun", "Slurm"; empty when there is none
	Rank       int
	LocalRank  int
	World      int
	LocalWorld int
	Job        string // the launcher's name of the job, as it gives it; empty when unknown
}

// A launcher tells each process its place in these variables; the first name that is set counts.
type launcher struct {
	name                               string
	rank, localRank, world, localWorld []string
}

// The innermost launcher wins. They nest in this order, innermost first: torchrun (and whatever
// else sets PyTorch's variables: ebb run, Ray, Kubeflow, accelerate, DeepSpeed with its LOCAL_SIZE)
// runs inside mpirun, that inside srun, that inside a pod.
var launchers = []launcher{
	{"torchrun", []string{"RANK"}, []string{"LOCAL_RANK"}, []string{"WORLD_SIZE"}, []string{"LOCAL_WORLD_SIZE", "LOCAL_SIZE"}},
	{"Open MPI", []string{"OMPI_COMM_WORLD_RANK"}, []string{"OMPI_COMM_WORLD_LOCAL_RANK"},
		[]string{"OMPI_COMM_WORLD_SIZE"}, []string{"OMPI_COMM_WORLD_LOCAL_SIZE"}},
	{"PMI", []string{"PMI_RANK", "PMIX_RANK"}, []string{"MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"},
		[]string{"PMI_SIZE"}, []string{"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"}},
	{"Slurm", []string{"SLURM_PROCID"}, []string{"SLURM_LOCALID"}, []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, nil},
	{"Kubernetes", []string{"JOB_COMPLETION_INDEX"}, nil, nil, nil},
}

// Detect finds the innermost launcher in an environment. Without one, Rank is -1; Job is still
// that of the surrounding allocation.
func Detect(getenv func(string) string) (Outer, error) { return DetectRank(getenv, -1) }

// DetectRank is Detect for a process whose rank was given: that one counts, if it is not negative, and not what the
// launcher tells. What a launcher tells of another rank, beside PyTorch's own variables, is then not told at all.
func DetectRank(getenv func(string) string, given int) (Outer, error) {
	out := nowhere()
	for _, l := range launchers {
		var err error
		if out, err = l.place(getenv); err != nil {
			return out, err
		}
		if out.Rank >= 0 {
			break
		}
	}
	switch {
	case out.Rank < 0:
		out = nowhere()
	case given >= 0 && given != out.Rank && out.Launcher != "torchrun":
		// One task of the launcher starts several ranks: its place is that of none of them.
		out.Rank, out.LocalRank, out.World, out.LocalWorld = given, -1, -1, -1
	case given >= 0:
		out.Rank = given
	}
	if out.World >= 0 && out.Rank >= out.World {
		remedy := "or give --rank"
		if given >= 0 {
			remedy = "or give a --rank that is"
		}
		return out, Usagef("rank %d of %s is not below its world size %d: correct the variables, %s", out.Rank, out.Launcher, out.World, remedy)
	}
	if out.LocalWorld >= 0 && out.LocalRank >= out.LocalWorld {
		return out, Usagef("local rank %d of %s is not below the %s that it has on this node: correct the variables",
			out.LocalRank, out.Launcher, Count(out.LocalWorld, "rank"))
	}
	out.Job = outerJob(getenv, out.Launcher)
	return out, nil
}

func nowhere() Outer { return Outer{Rank: -1, LocalRank: -1, World: -1, LocalWorld: -1} }

// place is what one launcher tells. Rank is -1 where it did not start this process.
func (l launcher) place(getenv func(string) string) (Outer, error) {
	out := nowhere()
	// A batch script carries SLURM_PROCID=0 too, without being a task.
	if l.name == "Slurm" && slurmStep(getenv) == "" {
		return out, nil
	}
	if l.name == "PMI" && ofSrun(getenv) {
		return out, nil
	}
	var err error
	if out.Rank, err = number(getenv, l.rank); err != nil || out.Rank < 0 {
		return out, err
	}
	out.Launcher = l.name
	if out.LocalRank, err = number(getenv, l.localRank); err != nil {
		return out, err
	}
	if out.World, err = number(getenv, l.world); err != nil {
		return out, err
	}
	if out.LocalWorld, err = number(getenv, l.localWorld); err != nil {
		return out, err
	}
	switch l.name {
	case "Slurm":
		out.LocalWorld = slurmLocalWorld(getenv)
		if out.LocalWorld >= 0 && out.LocalRank >= out.LocalWorld {
			out.LocalWorld = -1 // a heterogeneous step counts nodes through all components, the list is of one
		}
	case "Kubernetes":
		out.LocalRank = 0 // one rank in a pod
		out.LocalWorld = 1
	}
	return out, nil
}

// ofSrun reports whether it was srun that set PMI's variables. It gives them to every task where the site's MpiDefault
// is pmix or pmi2, and tells less in them than in its own.
func ofSrun(getenv func(string) string) bool {
	job, step := getenv("SLURM_JOB_ID"), slurmStep(getenv)
	switch {
	case job == "" || step == "" || getenv("SLURM_PROCID") == "":
		return false
	case getenv("PMIX_NAMESPACE") != "":
		return strings.HasPrefix(getenv("PMIX_NAMESPACE"), "slurm.pmix.")
	case getenv("PMI_JOBID") != "":
		return getenv("PMI_JOBID") == job+"."+step
	}
	for _, l := range launchers {
		if l.name == "PMI" && firstSet(getenv, l.localRank) != "" {
			return false // of an mpiexec, which tells more
		}
	}
	size, tasks := getenv("PMI_SIZE"), firstSet(getenv, []string{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"})
	return getenv("PMI_RANK") == getenv("SLURM_PROCID") && (size == "" || tasks != "" && size == getenv(tasks))
}

// slurmStep is the number of the step that this process is a task of; empty where it is of none.
func slurmStep(getenv func(string) string) string {
	return getenv(firstSet(getenv, []string{"SLURM_STEP_ID", "SLURM_STEPID"}))
}

// wider reports whether the job around this process is larger than a world of that many ranks on this
// node. What runs inside a run of ebb is meant to be a world of its own.
func wider(outer Outer, ranks int, getenv func(string) string) bool {
	if Nested(getenv) {
		return false
	}
	more := func(name string, than int) bool {
		n, err := strconv.Atoi(getenv(name))
		return err == nil && n > than
	}
	return outer.World > ranks || more("WORLD_SIZE", ranks) ||
		more("SLURM_NNODES", 1) || more("SLURM_JOB_NUM_NODES", 1) || more("GROUP_WORLD_SIZE", 1) || more("CROSS_SIZE", 1)
}

// number reads the first of the variables that is set; -1 when none is.
func number(getenv func(string) string, names []string) (int, error) {
	name := firstSet(getenv, names)
	if name == "" {
		return -1, nil
	}
	n, err := strconv.Atoi(getenv(name))
	if err != nil || n < 0 {
		return -1, Usagef("%s=%s is not a whole number: correct it or unset it", name, getenv(name))
	}
	return n, nil
}

// firstSet is the first of the variables that is set; empty when none is.
func firstSet(getenv func(string) string, names []string) string {
	for _, name := range names {
		if getenv(name) != "" {
			return name
		}
	}
	return ""
}

// slurmLocalWorld reads the tasks of this node from a list such as "3,1" or "2(x2)". -1 when
// the list does not tell.
func slurmLocalWorld(getenv func(string) string) int {
	list := getenv("SLURM_STEP_TASKS_PER_NODE")
	if list == "" {
		list = getenv("SLURM_TASKS_PER_NODE")
	}
	node, err := strconv.Atoi(getenv("SLURM_NODEID"))
	if err != nil || list == "" {
		return -1
	}
	for _, entry := range strings.Split(list, ",") {
		count, times, repeated := strings.Cut(entry, "(x")
		n := 1
		if repeated {
			if n, err = strconv.Atoi(strings.TrimSuffix(times, ")")); err != nil {
				return -1
			}
		}
		if node < n {
			tasks, err := strconv.Atoi(count)
			if err != nil {
				return -1
			}
			return tasks
		}
		node -= n
	}
	return -1
}

// outerJob names the job: that of the innermost launcher that has one.
func outerJob(getenv func(string) string, launcher string) string {
	// torchrun calls every job "none" that was not given a name.
	if id := getenv("TORCHELASTIC_RUN_ID"); launcher == "torchrun" && id != "" && id != "none" {
		return "torchrun-" + id
	}
	if launcher == "Open MPI" || launcher == "PMI" {
		for _, name := range []string{"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PALS_APID", "PMI_JOBID"} {
			if id := getenv(name); id != "" {
				return "mpi-" + id
			}
		}
	}
	if id := getenv("SLURM_JOB_ID"); id != "" {
		step := slurmStep(getenv)
		if step == "" {
			return "slurm-" + id
		}
		return fmt.Sprintf("slurm-%s.%s", id, step)
	}
	if id := getenv("RAY_JOB_ID"); id != "" {
		return "ray-" + id
	}
	// Pods of an indexed job are called JOB-INDEX.
	if index := getenv("JOB_COMPLETION_INDEX"); index != "" {
		if job, ok := strings.CutSuffix(getenv("HOSTNAME"), "-"+index); ok && job != "" {
			return "k8s-" + job
		}
	}
	return ""
}
