// SPDX-License-Identifier: Apache-2.0

// Requests to run something become commands for PID 1 of a box.

package session

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"

	"github.com/boxd-dev/boxd/supervisor/policy"

	"github.com/boxd-dev/boxd/supervisor/process"
)

// headShare is the share of the kept output that is its beginning; the rest is its end.
const headShare = 0.6

// followWindow is how far a program may be ahead of the reader of its output before it blocks.
const followWindow = quantity.MiB

// ExecRequest asks for one execution: exactly one of Argv, Command and Code.
type ExecRequest struct {
	Argv     []string
	Command  *string // for the shell
	Code     *string // in Language
	Language string
	Env      map[string]string
	Dir      string // "": the workspace
	// Existing refuses a Dir that is missing (StatusStartFailed). Otherwise it is created where that is possible: below
	// isolation.Roots and the home of the box user.
	Existing bool
	// User is RootUser, or the name of the box user, who it is if User is "".
	User        string
	Stdin       []byte // what the program reads
	MergeOutput bool   // standard error is the pipe of standard output
	// Spool is how much of each stream of a process, or of an execution with an id, is kept on disk; nil: it is kept in memory.
	Spool       *quantity.Size
	Timeout     *quantity.Duration
	Limits      policy.ProgramLimits
	Rlimits     map[string]string // of this program only, SOFT:HARD by name
	OutputLimit *quantity.Size    // per stream; "": the configured one

	// Usual allows a request without a program: the image of the session may name one.
	Usual bool
	// Beginning keeps only the beginning of each stream.
	Beginning bool
	// Internal makes it a program of boxd itself: of the rest only Argv, Dir, Stdin and Wait count.
	Internal *InternalExec
	// Wait is how long it may wait for room in its session; nil: as long as the configuration allows.
	Wait *time.Duration
}

// Context is what a session provides to everything that runs in it.
type Context struct {
	Config   *policy.Config
	Policy   policy.EffectivePolicy // policy of the session's owner
	Profile  *policy.Profile
	Settings policy.Settings
	Enforced map[string]policy.Mechanism
	Env      []string // NAME=value, without variables of a single program
}

// Plan validates a request and merges it with the settings of its session. A managed program has a timeout only if the request
// has one, which may be any. What makes it a process is not in the Spec.
func (c *Context) Plan(req *ExecRequest, managed bool) (*process.Spec, error) {
	if req.Internal != nil {
		return c.planInternal(req)
	}
	copied := *req // a copy: the caller's stays unchanged
	copied.Usual = false
	if root := c.Settings.Root; root != nil && req.Argv == nil && req.Command == nil && req.Code == nil {
		copied.Argv = root.Command
	}
	req = &copied
	if err := req.Validate(c.Config); err != nil {
		return nil, err
	}
	tool := policy.ToolExec
	if managed {
		tool = policy.ToolProcesses
	}
	if err := c.Policy.May(tool); err != nil {
		return nil, err
	}
	timeout, clamped, err := c.timeout(req.Timeout, managed)
	if err != nil {
		return nil, err
	}
	root, env, err := c.user(req.User)
	if err != nil {
		return nil, err
	}
	spec := &process.Spec{Clamped: clamped, Rlimits: req.Rlimits, Input: req.Stdin, Command: isolation.Command{
		Root: root, Env: withEnv(env, req.Env), Dir: req.Dir, ScriptArg: -1, Timeout: timeout,
		KeepRunning: c.Profile.Leftovers == policy.LeftoversKeep, Merged: req.MergeOutput,
	}}
	cmd := &spec.Command
	if cmd.Dir == "" {
		cmd.Dir = isolation.Workspace
		if root := c.Settings.Root; root != nil && root.Dir != "" {
			cmd.Dir = root.Dir
		}
	}
	cmd.Existing = (req.Existing || req.Dir != "" && !c.canCreateDir(req.Dir)) && (!root || req.Dir != RootHome)
	limit := c.Config.Exec.OutputLimit
	if req.OutputLimit != nil {
		limit = *req.OutputLimit
	}
	cmd.Output = splitOutput(limit, req.Beginning)
	if req.Spool != nil {
		if cmd.Spool, spec.Answer = true, new(cmd.Output); managed {
			spec.Answer = &isolation.Output{Tail: uint64(limit)}
		}
		cmd.Output = splitOutput(*req.Spool, req.Beginning)
	}
	if len(req.Stdin) > 0 {
		cmd.Stdin = isolation.StdinFile
	}
	if cmd.Limits, err = req.Limits.Groups(&c.Settings, c.Enforced); err != nil {
		return nil, err
	}
	spec.Script = argv(c.Config, cmd, req)
	rlimits, err := policy.ProgramRlimits(&c.Settings, req.Rlimits)
	if err != nil {
		return nil, err
	}
	if len(rlimits) > 0 {
		cmd.Argv = isolation.LimitedArgv(rlimits, cmd.Argv)
		if cmd.ScriptArg >= 0 {
			cmd.ScriptArg += isolation.LimitedAhead
		}
	}
	return spec, nil
}

// RootUser is the name of the user that programs with the rights of root over their box run as, and RootHome its home directory.
const (
	RootUser = "root"
	RootHome = "/root"
)

// user reports whether a program of a user runs as root, and returns that user's environment.
func (c *Context) user(user string) (root bool, env []string, err error) {
	name := c.Settings.UserName()
	switch user {
	case "", name:
		return false, c.Env, nil
	case RootUser:
		if c.Settings.ReadOnlyRoot {
			return false, nil, fault.Field("user", user, "left out in a session whose root cannot be written to (read_only_root)").
				WithHint("create one whose root can be written to: boxctl create --writable-root")
		}
		if err := c.Policy.May(policy.ToolRoot); err != nil {
			return false, nil, err
		}
		return true, c.rootEnv(), nil
	}
	return false, nil, fault.Field("user", user, fault.OneOf(name, RootUser)).WithHint("for another one, start su as root")
}

// rootEnv returns the environment of root: variables that follow the name and the home of the box user follow root's.
func (c *Context) rootEnv() []string {
	userVars, rootVars := policy.VariablesOf(c.Settings.UserName(), c.Settings.HomeDir()), policy.VariablesOf(RootUser, RootHome)
	env := map[string]string{"HOME": RootHome, "USER": RootUser, "LOGNAME": RootUser}
	for _, variable := range c.Env {
		if name, value, _ := strings.Cut(variable, "="); userVars[name] == value && rootVars[name] != value {
			env[name] = rootVars[name]
		}
	}
	return withEnv(c.Env, env)
}

// MayBeRoot reports whether callers may run programs of a session as root.
func (s *Session) MayBeRoot() bool {
	root, _, err := s.context().user(RootUser)
	return root && err == nil && !s.IsRootless()
}

// HasNoRoot reports whether a program was not started because its box has no root after all: it is of an earlier version of boxd, or its
// host allows none.
func HasNoRoot(err error) bool {
	step, ok := errors.AsType[*isolation.StepError](err)
	return ok && step.Step == isolation.StepUser
}

// MarkRootless notes that the box of a session has no root.
func (s *Session) MarkRootless() { s.rootless.Store(true) }

// IsRootless reports whether MarkRootless was called.
func (s *Session) IsRootless() bool { return s.rootless.Load() }

// splitOutput splits the limit of a stream into its beginning and its end.
func splitOutput(limit quantity.Size, beginning bool) isolation.Output {
	if beginning {
		return isolation.Output{Head: uint64(limit)}
	}
	head := uint64(float64(limit) * headShare)
	return isolation.Output{Head: head, Tail: uint64(limit) - head}
}

// canCreateDir reports whether a missing working directory is created. Elsewhere a box has what its image has.
func (c *Context) canCreateDir(dir string) bool {
	return dir == "/" || isolation.UnderRoots(dir) || isolation.Within(dir, c.Settings.HomeDir()) || isolation.Within(dir, isolation.SkillsDir) || isolation.Within(dir, isolation.DrivesDir)
}

// maxTimeout leaves room for the durations that are added to a timeout.
const maxTimeout = quantity.Duration(365 * 24 * time.Hour)

func (c *Context) timeout(requested *quantity.Duration, managed bool) (time.Duration, []policy.Clamp, error) {
	switch {
	case !managed:
		return c.Policy.ExecTimeout(c.Profile, c.Settings.Profile, requested)
	case requested == nil:
		return 0, nil, nil
	case *requested <= 0 || *requested > maxTimeout:
		return 0, nil, fault.Field("timeout", *requested, fmt.Sprintf("more than 0, at most %v", maxTimeout))
	}
	return c.Policy.Timeout(time.Duration(*requested), true)
}

// argv sets the arguments. It returns the code if that is too long for an argument.
func argv(cfg *policy.Config, cmd *isolation.Command, req *ExecRequest) []byte {
	if req.Argv != nil {
		cmd.Argv = req.Argv
		return nil
	}
	code := req.Code
	lang, _ := policy.FindLanguage(cfg.Languages, req.Language)
	if req.Command != nil {
		code, lang = req.Command, cfg.Languages["sh"]
	}
	cmd.Argv, cmd.ScriptArg = lang.Command(*code)
	if cmd.ScriptArg < 0 {
		return nil
	}
	cmd.ScriptSuffix = lang.Suffix
	return []byte(*code)
}

// Validate checks what can be checked without a session.
func (req *ExecRequest) Validate(cfg *policy.Config) error {
	count := 0
	for _, set := range []bool{req.Argv != nil, req.Command != nil, req.Code != nil} {
		if set {
			count++
		}
	}
	switch {
	case count == 0 && req.Usual: // the image of its session may name a program
	case count != 1:
		err := fault.Errorf(fault.Invalid, "give one of argv, command and code; the request has %d", count).
			WithHint("give one of argv (program and arguments), command (a shell line) and code (with language)")
		err.Field, err.Value, err.Allowed = "argv, command, code", strconv.Itoa(count), "one of them"
		return err
	case req.Argv != nil:
		if err := validateArgv(cfg, req.Argv); err != nil {
			return err
		}
	case req.Command != nil:
		if err := validateCode(cfg, "command", *req.Command); err != nil {
			return err
		}
	default:
		if _, ok := policy.FindLanguage(cfg.Languages, req.Language); !ok {
			return fault.Field("language", req.Language, fault.OneOf(slices.Sorted(maps.Keys(cfg.Languages))...))
		}
		if err := validateCode(cfg, "code", *req.Code); err != nil {
			return err
		}
	}
	if req.Code == nil && req.Language != "" {
		return fault.Field("language", req.Language, "left out without code").WithText("language: only for code, and the request has none")
	}
	if req.Dir != "" && !isolation.CleanAbsolute(req.Dir) {
		return fault.Field("cwd", req.Dir, "an absolute path without . and .., NUL or a trailing slash")
	}
	if size := quantity.Size(len(req.Stdin)); size > cfg.Exec.MaxStdin {
		return fault.Field("stdin", size, fmt.Sprintf("at most %v (exec.max_stdin)", cfg.Exec.MaxStdin)).WithHint("send it with a stream instead")
	}
	if l := req.OutputLimit; l != nil && (*l < 1 || *l > cfg.Exec.OutputLimit) {
		return fault.Field("output_limit", *l, fmt.Sprintf("1B to %v (exec.output_limit)", cfg.Exec.OutputLimit))
	}
	if s, maximum := req.Spool, cfg.Processes.MaxSpool; s != nil {
		switch {
		case maximum == 0:
			return fault.Field("spool", *s, "left out, as output is kept in memory alone (processes.max_spool)")
		case *s < policy.MinSpool || *s > maximum:
			return fault.Field("spool", *s, fmt.Sprintf("%v to %v (processes.max_spool)", policy.MinSpool, maximum))
		}
	}
	return policy.CheckVariables(req.Env)
}

func validateArgv(cfg *policy.Config, argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return fault.Field("argv", fault.Word("empty"), "a program and its arguments")
	}
	var size quantity.Size
	for i, arg := range argv {
		field := fmt.Sprintf("argv[%d]", i)
		if strings.Contains(arg, "\x00") {
			return fault.Field(field, arg, "text without NUL")
		}
		if len(arg) > policy.MaxArg {
			return fault.Field(field, quantity.Size(len(arg)), fmt.Sprintf("at most %d bytes (a limit of the kernel)", policy.MaxArg)).
				WithHint("use command, code or stdin, which may be longer")
		}
		size += quantity.Size(len(arg) + 1)
	}
	if size > cfg.Exec.MaxCommand {
		return fault.Field("argv", size, fmt.Sprintf("at most %v (exec.max_command)", cfg.Exec.MaxCommand))
	}
	return nil
}

func validateCode(cfg *policy.Config, field, code string) error {
	switch {
	case strings.TrimSpace(code) == "":
		return fault.Field(field, code, "a program text that is not empty")
	case strings.Contains(code, "\x00"):
		return fault.Field(field, code, "text without NUL")
	case quantity.Size(len(code)) > cfg.Exec.MaxCommand:
		return fault.Field(field, quantity.Size(len(code)), fmt.Sprintf("at most %v (exec.max_command)", cfg.Exec.MaxCommand)).
			WithHint("write it to a file in the workspace, or send it on stdin")
	}
	return nil
}

// Environment returns the configured variables, overridden by those of the session's image, and then by env.
func Environment(cfg *policy.Config, settings *policy.Settings, env map[string]string) []string {
	all := cfg.VariablesFor(settings.UserName(), settings.HomeDir())
	if image := settings.Root; image != nil {
		maps.Copy(all, image.Env)
	}
	maps.Copy(all, env)
	list := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, name+"="+all[name])
	}
	return list
}

// withEnv returns a session's environment overridden by that of an execution.
func withEnv(base []string, env map[string]string) []string {
	if len(env) == 0 {
		return base
	}
	list := make([]string, 0, len(base)+len(env))
	for _, kv := range base {
		name, _, _ := strings.Cut(kv, "=")
		if _, replaced := env[name]; !replaced {
			list = append(list, kv)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		list = append(list, name+"="+env[name])
	}
	return list
}
