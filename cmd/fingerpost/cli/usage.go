package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The exit codes of commands. Any error that is not marked with another one is ExitFailed.
const (
	ExitNo       = 1 // a check has failed, replicas differ, there is no endpoint, a manifest cannot be injected
	ExitUsage    = 2 // the command line is wrong
	ExitFailed   = 3 // it could not be done, such as because no replica responds
	ExitNotFound = 4 // there is no such thing
)

const exitCodes = `Exit codes:
  0  success
  1  a check has failed, replicas differ, a Service has no endpoints, a manifest cannot be injected
  2  the command line is wrong
  3  it could not be done: a replica or an API server does not respond, or refuses
  4  there is no such cluster or Service
`

// An exitError is an error with an exit code.
type exitError struct {
	error
	code int
}

func (e exitError) Unwrap() error { return e.error }

// WithExitCode marks an error; nil stays nil.
func WithExitCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return exitError{err, code}
}

// ExitCode returns with which code a command ends.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if marked, is := errors.AsType[exitError](err); is {
		return marked.code
	}
	return ExitFailed
}

// usageError adds the usage of a command to an error about its flags or arguments.
func usageError(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return WithExitCode(ExitUsage, fmt.Errorf("%w\nUsage: %s\nSee '%s --help'",
		err, cmd.UseLine(), cmd.CommandPath()))
}

// arguments requires exactly these arguments, and names the one that is missing.
func arguments(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return errors.New(names[len(args)] + " is missing")
		case len(args) > len(names):
			return fmt.Errorf("unexpected argument %q", args[len(names)])
		}
		return nil
	}
}

// noArguments is the Args of a command without arguments: those that it has are subcommands.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && cmd.HasAvailableSubCommands() {
		cmd.SuggestionsMinimumDistance = 2
		if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
			return fmt.Errorf("unknown command %q: did you mean %s?", args[0], alternatives(similar))
		}
		return fmt.Errorf("unknown command %q", args[0])
	}
	return arguments()(cmd, args)
}

// Prepare gives all commands below root the same help, usage errors and exit codes, and the name under which
// the binary was called: kubectl and linkerd run programs whose names begin with theirs.
func Prepare(root *cobra.Command, program string) {
	leaveOutClosedStreams()

	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.SetFlagErrorFunc(usageError)
	root.SetUsageFunc(func(cmd *cobra.Command) error { return usageTemplate.Execute(cmd.OutOrStderr(), cmd) })
	name := "fingerpost"
	for _, caller := range []string{"kubectl", "linkerd"} {
		if strings.TrimSuffix(filepath.Base(program), ".exe") == caller+"-"+root.Name() {
			name = caller + " " + root.Name()
			root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
		}
	}
	prepare(root, name)
}

func prepare(cmd *cobra.Command, name string) {
	check := cmd.Args
	if check == nil && !takesAny(cmd) {
		check = noArguments
	}
	if check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error { return usageError(cmd, check(cmd, args)) }
	}

	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() } // or Args are not checked
	}

	lines := strings.Split(cmd.Example, "\n")
	for i, line := range lines {
		if rest, is := strings.CutPrefix(line, "  fingerpost "); is {
			lines[i] = "  " + name + " " + rest
		}
	}
	cmd.Example = strings.Join(lines, "\n")
	for _, sub := range cmd.Commands() {
		prepare(sub, name)
	}
}

// takesAny reports whether the usage of a command has optional arguments.
func takesAny(cmd *cobra.Command) bool {
	return strings.Contains(cmd.Use, "...]") || cmd.Name() == "help"
}

// helpWidth is how many columns a help has, at most.
const helpWidth = 100

// connectionGroup marks the flags that name what a command reads. They are many, the same in all commands, and
// seldom needed, so they stand at the end of a help.
const connectionGroup = "connection"

// groupFlags marks all flags that add adds.
func groupFlags(fs *pflag.FlagSet, add func(fs *pflag.FlagSet)) {
	group := pflag.NewFlagSet("", 0)
	add(group)
	group.VisitAll(func(f *pflag.Flag) { f.Annotations = map[string][]string{connectionGroup: nil} })
	fs.AddFlagSet(group)
}

// usageTemplate is the usage of a command as cobra prints it, in at most helpWidth columns, and with the connection
// flags at the end.
var usageTemplate = template.Must(template.New("usage").Funcs(template.FuncMap{
	"ownFlags":        func(cmd *cobra.Command) string { return flagUsages(cmd, false) },
	"connectionFlags": func(cmd *cobra.Command) string { return flagUsages(cmd, true) },
}).Parse(`Usage:
{{- if .HasAvailableSubCommands}}
  {{.CommandPath}} [command]
{{- else}}
  {{.UseLine}}
{{- end}}
{{- if .Aliases}}

Aliases:
  {{.NameAndAliases}}
{{- end}}
{{- if .HasExample}}

Examples:
{{.Example}}
{{- end}}
{{- if .HasAvailableSubCommands}}

Available Commands:
{{- range .Commands}}{{if or .IsAvailableCommand (eq .Name "help")}}
  {{printf "%-*s" .NamePadding .Name}} {{.Short}}
{{- end}}{{end}}
{{- end}}
{{with ownFlags .}}
Flags:
{{.}}{{end}}
{{- with connectionFlags .}}
Connection flags:
{{.}}{{end}}
{{- if not .HasParent}}
` + exitCodes + `{{end}}`))

// flagUsages returns the usage of the flags of a command that are in the connectionGroup, or of all others.
func flagUsages(cmd *cobra.Command, connection bool) string {
	group := pflag.NewFlagSet("", 0)
	add := func(f *pflag.Flag) {
		if _, is := f.Annotations[connectionGroup]; is == connection {
			group.AddFlag(f)
		}
	}
	cmd.LocalFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	return group.FlagUsagesWrapped(helpWidth)
}

// A choice is the value of a flag that has one of a few values.
type choice struct {
	value *string
	all   []string
}

// AddChoice adds a flag whose first value is the default.
func AddChoice(cmd *cobra.Command, value *string, name, shorthand, usage string, all ...string) {
	*value = all[0]
	cmd.Flags().VarP(&choice{value, all}, name, shorthand, usage+alternatives(all))
	values := cobra.FixedCompletions(all, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc(name, values) // it fails for a flag that does not exist
}

func (c *choice) String() string { return *c.value }

// Type names the value in a help.
func (c *choice) Type() string { return "string" }

func (c *choice) Set(text string) error {
	if !slices.Contains(c.all, text) {
		return errors.New("it is " + alternatives(c.all))
	}
	*c.value = text
	return nil
}

// alternatives is a list such as "a, b or c", of at least one.
func alternatives(all []string) string {
	last := len(all) - 1
	if last == 0 {
		return all[0]
	}
	return strings.Join(all[:last], ", ") + " or " + all[last]
}
