package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ebb-offload/ebb/internal/launch"
)

// shells are those that completion is made for.
var shells = []string{"bash", "zsh", "fish"}

func newCompletion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion " + strings.Join(shells, "|"),
		Short: "Print the completion script of a shell",
		Long: `Prints the script by which a shell completes ebb's verbs and flags, and the words that flags take.
Bash needs its package bash-completion. A command after -- is completed as any other command.`,
		Example: `  source <(ebb completion bash)
  ebb completion bash >~/.local/share/bash-completion/completions/ebb
  ebb completion zsh >"${fpath[1]}/_ebb"
  ebb completion fish >~/.config/fish/completions/ebb.fish`,
		DisableFlagsInUseLine: true,
		ValidArgs:             shells,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return launch.Usagef("for which shell? ebb completion %s", strings.Join(shells, "|"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, out := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(out, true)
			case "zsh":
				return root.GenZshCompletion(out)
			case "fish":
				return root.GenFishCompletion(out, true)
			}
			return launch.Usagef("no completion for %q: ebb completion %s", args[0], strings.Join(shells, "|"))
		},
	}
}

// completeWords lets shells complete what the flags of a command take: the words of those that take one of
// several, directories and files.
func completeWords(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		kind := f.Value.Type()
		switch {
		case strings.Contains(kind, "|"):
			words := slices.DeleteFunc(strings.Split(kind, "|"), func(w string) bool { return w == strings.ToUpper(w) })
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // it fails for flags that have one
		case strings.HasPrefix(kind, "DIR"):
			_ = cmd.MarkFlagDirname(f.Name) // it fails for flags that are not there
		case kind != "FILE" && kind != "LIB":
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.NoFileCompletions)
		}
	})
	for _, sub := range cmd.Commands() {
		completeWords(sub)
	}
}

// newHelp is cobra's verb for help, in ebb's words.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Explain a command",
		Long:  `Prints what a command does, its flags, and examples. It is the same as --help after the command.`,
		Example: `  ebb help
  ebb help run`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) (names []cobra.Completion, _ cobra.ShellCompDirective) {
			for _, verb := range cmd.Root().Commands() {
				if len(args) == 0 && verb.IsAvailableCommand() {
					names = append(names, cobra.CompletionWithDesc(verb.Name(), verb.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || found == nil || len(rest) > 0 {
				word := strings.Join(args, " ")
				if len(rest) == 1 {
					word = rest[0]
				}
				if found == nil || !found.HasSubCommands() {
					found = cmd.Root()
				}
				return launch.Usagef("%s", unknownCommand(found, word))
			}
			found.InitDefaultVersionFlag()
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}
