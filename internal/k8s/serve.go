package k8s

import "fmt"

// File modes are written as Kubernetes' JSON has them, in decimal.
const modeGroupReads = 0o440

// serveContainer runs ebb serve beside the ranks. It begins before them and ends after them: an init container that
// goes on (Kubernetes 1.29 and later). So it is the one that reclaims what ranks leave that were killed: a hook could
// not, since those of all containers run at the beginning of the end, while the ranks live.
func (o Options) serveContainer() Object {
	s := o.Serve
	script, why := copyToken+` && exec "$0" "$@"`, "the token is copied, for ebb serve takes none that others may read, and a Secret is root's"
	if o.onDisk() {
		script = copyToken + " || exit\n" + fmt.Sprintf(serveAndReclaim, o.diskDir())
		why += "; at the end, when the ranks are dead, what they left is removed"
	}
	c := Object{
		{Name: "name", Value: "ebb-serve"},
		{Name: "image", Value: o.Image},
		{Name: "restartPolicy", Value: "Always"},
		{Name: "command", Value: texts("/bin/sh", "-c"), Why: why},
		{Name: "args", Value: texts(
			script,
			o.EBB, "serve",
			fmt.Sprintf("--listen=:%d", s.Port),
			"--runtime-dir="+runtimeDir,
			"--token-file="+runDir+"/token",
			"--tls-cert="+tlsDir+"/tls.crt",
			"--tls-key="+tlsDir+"/tls.key",
			fmt.Sprintf("--grace=%v", serveGrace),
		)},
		{Name: "ports", Value: list{Object{{Name: "name", Value: "ebb-serve"}, {Name: "containerPort", Value: int64(s.Port)}}}},
		{Name: "env", Value: list{variable("EBB_RUNTIME_DIR", runtimeDir)}},
		{Name: "readinessProbe", Value: Object{
			{Name: "httpGet", Value: Object{{Name: "path", Value: "/healthz"}, {Name: "port", Value: "ebb-serve"}, {Name: "scheme", Value: "HTTPS"}}},
		}},
	}
	mounts := list{mount(runVol, runDir, false), mount("serve-token", tokenDir, true), mount("serve-tls", tlsDir, true)}
	if o.onDisk() {
		mounts = append(list{mount(scratchVol, scratchDir, false)}, mounts...)
	}
	return c.with(
		Field{Name: "resources", Value: Object{
			{Name: "requests", Value: Object{{Name: "cpu", Value: "100m"}, {Name: "memory", Value: quantity(serveMemory)}, {Name: "ephemeral-storage", Value: quantity(serveStorage)}}},
			{Name: "limits", Value: Object{{Name: "memory", Value: quantity(serveMemory)}, {Name: "ephemeral-storage", Value: quantity(serveStorage)}}},
		}},
		Field{Name: "securityContext", Value: security()},
		Field{Name: "volumeMounts", Value: mounts},
	)
}

// copyToken is the beginning of what the container's shell does; ebb's command and its arguments are "$0" "$@".
const copyToken = `umask 077 && cat ` + tokenDir + `/token >` + runDir + `/token`

// serveAndReclaim is the rest where there is a disk: the shell passes SIGTERM on, and reclaims when ebb serve has
// ended. A wait that the signal broke off tells more than 128. Its verb is the disk directory.
const serveAndReclaim = `"$0" "$@" &
trap 'kill -TERM $!' TERM
wait $!; status=$?
if [ $status -gt 128 ]; then wait $!; status=$?; fi
if [ -d %[1]s ]; then "$0" gc --disk-dir %[1]s || exit; fi
exit $status
`

// What ebb serve may take: memory with its replies to a controller, and room for its log.
const (
	serveMemory  = 256 << 20
	serveStorage = 1 << 30
)

func (o Options) serveVolumes() list {
	secret := func(volume, name string, keys ...string) Object {
		items := list{}
		for _, key := range keys {
			items = append(items, Object{{Name: "key", Value: key}, {Name: "path", Value: key}})
		}
		return Object{
			{Name: "name", Value: volume},
			{Name: "secret", Value: Object{
				{Name: "secretName", Value: name},
				{Name: "defaultMode", Value: int64(modeGroupReads), Why: "0440"},
				{Name: "items", Value: items},
			}},
		}
	}
	return list{
		secret("serve-token", o.Serve.TokenSecret, "token"),
		secret("serve-tls", o.Serve.TLSSecret, "tls.crt", "tls.key"),
	}
}
