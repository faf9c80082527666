package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/launch"
	"github.com/ebb-offload/ebb/internal/node"
	"github.com/ebb-offload/ebb/internal/rollout"
	"github.com/ebb-offload/ebb/internal/serve"
	"github.com/ebb-offload/ebb/internal/swap"
	"github.com/ebb-offload/ebb/internal/version"
)

// serveFlags are those of ebb serve.
type serveFlags struct {
	ranks     rankFlags
	engines   swapFlags // only those of its flags that engineFlags names are there
	options   serve.Options
	logFormat string
}

// engineFlags are the flags of ebb swap that say which engines there are; the rest of a hand-over is in the
// requests.
var engineFlags = []string{"engine", "engine-kind", "engine-command", "engine-tag", "engine-level", "engine-pause", "engine-state", "engine-token-file"}

// serveResult is what ebb serve --json prints when it listens.
type serveResult struct {
	MessageType string `json:"message_type"`
	URL         string `json:"url"`
	PID         int    `json:"pid"`
}

func newServe() *cobra.Command {
	s := serveFlags{
		logFormat: launch.LogText,
		options:   serve.Options{Listen: "127.0.0.1:7737", Grace: 30 * time.Second, Version: version.Version},
	}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve this node's ranks over HTTP: interface, live page, metrics",
		Long: `Serves the ranks of this node over HTTP until SIGTERM or SIGINT: the verbs for controllers under
/v1/, a live page at /, and metrics for Prometheus at /metrics (docs/serve.md).

It listens on this machine alone unless told otherwise. An address that other machines reach demands
--token-file, --tls-cert and --tls-key. On a machine that others use too, give --token-file, or
listen on a socket: without either, every user of the machine can command the ranks.

SIGHUP reads token and certificate anew. At SIGTERM commands under way have --grace to come to their
end; a pause that has not begun by then is withdrawn.`,
		Example: `  ebb serve
  ebb serve --listen unix:$XDG_RUNTIME_DIR/ebb-serve.sock
  ebb serve --listen 0.0.0.0:7737 --token-file token --tls-cert node.crt --tls-key node.key
  ebb serve --engine http://127.0.0.1:8000`,
		Args:    noArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return fromEnvironment(cmd) },
		RunE:    func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context()) },
	}
	f := cmd.Flags()
	text := func(name, kind, usage string, to *string) {
		f.Var(&value{text: *to, kind: kind, parse: into(to, anything)}, name, usage)
	}
	text("listen", "HOST:PORT", "where to listen: an IP address and a port (0: any), or unix:PATH", &s.options.Listen)
	text("token-file", "FILE", "file with the bearer token that clients must send; only its owner may read it", &s.options.Token)
	text("tls-cert", "FILE", "certificate of the server, with those it depends on (PEM)", &s.options.TLSCert)
	text("tls-key", "FILE", "its private key (PEM)", &s.options.TLSKey)
	f.Var(&value{text: s.options.Grace.String(), kind: "TIME", parse: into(&s.options.Grace, launch.ParseTime)},
		"grace", "time that commands under way have at SIGTERM: seconds, or a time such as 90s or 5m")
	f.Var(&value{text: s.logFormat, kind: "text|json", parse: into(&s.logFormat, word(launch.LogText, launch.LogJSON))},
		"log-format", "of the lines on standard error")
	s.addEngines(f)
	s.ranks.add(f)
	return cmd
}

// addEngines adds the flags of ebb swap about engines, as they are there.
func (s *serveFlags) addEngines(f *pflag.FlagSet) {
	var all cobra.Command
	s.engines = swapFlags{options: swap.Options{Kind: rollout.KindAuto, Settings: rollout.Settings{Level: 1}}}
	s.engines.add(&all)
	for _, name := range engineFlags {
		f.AddFlag(all.Flags().Lookup(name))
	}
}

func (s *serveFlags) run(ctx context.Context) error {
	outliveReaders()
	s.options.Log = launch.NewLog(os.Stderr, s.logFormat)
	if s.engines.wrong != nil {
		return s.engines.wrong
	}
	s.options.Node = serve.RanksOf(s.ranks.places(), s.ranks.selection)
	if len(s.engines.options.Engines) > 0 {
		if err := s.engines.settings(); err != nil {
			return err
		}
		s.options.Swap = s.handOver
	}
	server, err := serve.New(s.options)
	var wrong *serve.OptionError
	switch {
	case errors.As(err, &wrong):
		return launch.Usagef("%w", err)
	case err != nil:
		return &launch.Error{Status: launch.StatusInternal, Text: oneLine(err), Err: err}
	}
	ctx, stop := untilEnd(ctx, server, s.options.Log)
	defer stop()
	if s.ranks.asJSON {
		if err := printJSON(serveResult{MessageType: "serve", URL: server.URL(), PID: os.Getpid()}); err != nil {
			return err
		}
	}
	s.options.Log.Info("serving "+server.URL()+" until SIGTERM", "url", server.URL())
	if !server.Guarded() {
		s.options.Log.Info("every user of this machine can command the ranks: --token-file or --listen unix:PATH keeps others out")
	}
	if err := server.Serve(ctx); err != nil {
		return &launch.Error{Status: launch.StatusInternal, Text: "serving " + server.URL() + ": " + oneLine(err), Err: err}
	}
	return nil
}

// handOver is a hand-over with the engines of the command line.
func (s *serveFlags) handOver(ctx context.Context, to string, ranks []node.Rank, silent []node.Silent, tags []string, timeout time.Duration, tell func(swap.Step)) (swap.Report, error) {
	o := s.engines.options
	o.To, o.Ranks, o.Silent, o.Tags, o.Timeout, o.Tell = to, ranks, silent, tags, timeout, tell
	o.By, o.NoWait = swap.ByServe, true // whoever asks is told at once that another one is under way, and may repeat it
	return swap.Run(ctx, o)
}

// untilEnd is a context that ends with the first SIGTERM or SIGINT; the second ends the process. SIGHUP
// reads token and certificate anew.
func untilEnd(ctx context.Context, server *serve.Server, log *slog.Logger) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for s := range signals {
			switch {
			case s == syscall.SIGHUP:
				if err := server.Reload(); err != nil {
					log.Warn("SIGHUP: what could not be read anew stays as it was: " + oneLine(err))
					continue
				}
				log.Info("SIGHUP: token and certificate were read anew")
			default:
				cancel()
				signal.Reset(syscall.SIGINT, syscall.SIGTERM) // the next one ends the process at once
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(signals)
		cancel()
	}
}
