// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
	"github.com/boxd-dev/boxd/relay/render"
)

// joinHere makes "--here ro" one argument, as pflag needs it: a flag with an optional value does not take its value from
// the next argument. Arguments after the name of a program are left alone.
func joinHere(root *cobra.Command, args []string) []string {
	if i := slices.Index(args, "--here"); i < 0 || i+1 == len(args) || args[i+1] != "ro" && args[i+1] != "rw" {
		return args
	}
	cmd, rest, err := root.Find(args)
	if err != nil || cmd.Flags().Lookup("here") == nil {
		return args
	}
	cmd.InheritedFlags() // merges them with its own
	joined := strings.Fields(cmd.CommandPath())[1:]
	for i := 0; i < len(rest); i++ {
		arg := rest[i]
		switch {
		case arg == "--" || !strings.HasPrefix(arg, "-") || arg == "-":
			return append(joined, rest[i:]...)
		case arg == "--here" && i+1 < len(rest) && (rest[i+1] == "ro" || rest[i+1] == "rw"):
			i++
			joined = append(joined, arg+"="+rest[i])
		case takesNext(cmd, arg) && i+1 < len(rest):
			i++
			joined = append(joined, arg, rest[i])
		default:
			joined = append(joined, arg)
		}
	}
	return joined
}

// takesNext reports whether a flag takes the next argument as its value.
func takesNext(cmd *cobra.Command, arg string) bool {
	if name, long := strings.CutPrefix(arg, "--"); long {
		f := cmd.Flags().Lookup(name) // nil if a value follows =
		return f != nil && f.NoOptDefVal == ""
	}
	for i := 1; i < len(arg); i++ { // -it is two flags, -m64MiB is one with its value
		if f := cmd.Flags().ShorthandLookup(arg[i : i+1]); f == nil || f.NoOptDefVal == "" {
			return f != nil && i+1 == len(arg)
		}
	}
	return false
}

// parseMount reads SOURCE:TARGET[:MODE[:OWNER]] of a flag, or of an argument if flag is "". A source that does not begin
// with / is relative to the current directory. A z or Z of the mode, which docker has for SELinux, is ignored.
func parseMount(flag, text string) (m api.Mount, err error) {
	typed := strings.TrimSpace(flag + " " + render.ShellWord(text))
	part := strings.Split(text, ":")
	if len(part) < 2 || len(part) > 4 || part[0] == "" || part[1] == "" {
		return m, fmt.Errorf("%s: must be SOURCE:TARGET[:ro|rw[:OWNER-UID]]", typed)
	}
	if m.Source, err = sourceOf(typed, part[0]); err != nil {
		return m, err
	}
	m.Target = path.Clean(part[1])
	if !path.IsAbs(m.Target) {
		return m, fmt.Errorf("%s: the target must begin with /, for example /mnt/%s", typed, path.Base(m.Target))
	}
	if len(part) > 2 {
		mode := slices.DeleteFunc(strings.Split(part[2], ","), func(o string) bool { return o == "z" || o == "Z" })
		m.Mode = strings.Join(mode, ",")
		if len(mode) > 0 && !slices.Contains([]string{"ro", "rw", "none"}, m.Mode) {
			return m, fmt.Errorf("%s: the mode must be ro or rw", typed)
		}
	}
	if len(part) > 3 {
		owner, err := strconv.ParseUint(part[3], 10, 32)
		if err != nil {
			return m, fmt.Errorf("%s: the owner must be a uid", typed)
		}
		m.Owner = uint32(owner)
	}
	return m, nil
}

// sourceOf returns the source of a mount for boxd. A relative one must exist: if it does not, the user most often means
// a workspace, as volumes of docker have names.
func sourceOf(typed, source string) (string, error) {
	if filepath.IsAbs(source) {
		return filepath.Clean(source), nil
	}
	abs, err := filepath.Abs(source)
	if err != nil {
		return "", fmt.Errorf("%s: the directory of boxctl: %w", typed, err)
	}
	if info, err := os.Stat(abs); err != nil || !info.IsDir() {
		return "", fmt.Errorf("%s: the source must be a directory, and there is none at %s; use --workspace or --input for a workspace", typed, render.Printable(abs))
	}
	return abs, nil
}

// networkRule converts a rule for boxd. URLs, and hosts with a port, are accepted too.
func networkRule(text string) (string, error) {
	host, port := text, ""
	if scheme, _, isURL := strings.Cut(text, "://"); isURL {
		u, err := url.Parse(text)
		ports := map[string]string{"http": "80", "https": "443", "ws": "80", "wss": "443", "ssh": "22", "git": "9418", "ftp": "21"}
		switch {
		case err != nil || u.Hostname() == "" || u.Port() == "" && ports[scheme] == "":
			return "", fmt.Errorf("--network-rule %s: must be a host name or a network, for example pypi.org or '151.101.0.0/16 tcp 443'", render.ShellWord(text))
		case strings.Trim(u.Path, "/") != "" || u.RawQuery != "":
			return "", fmt.Errorf("--network-rule %s: must be a host without a path; %s://%s allows all of it", render.ShellWord(text), scheme, u.Host)
		}
		host, port = u.Hostname(), cmp.Or(u.Port(), ports[scheme])
	} else if h, p, ok := strings.Cut(text, ":"); ok && !strings.ContainsAny(text, " ") && p != "" && strings.Trim(p, "0123456789-") == "" {
		host, port = h, p
	}
	if a, err := netip.ParseAddr(host); err == nil {
		host = netip.PrefixFrom(a, a.BitLen()).String()
	}
	if port == "" {
		return host, nil
	}
	return host + " tcp " + port, nil
}

// programName makes a process name from its program.
func programName(req *api.ProcessRequest) string {
	word := "sh"
	if len(req.Argv) > 0 {
		word = path.Base(req.Argv[0])
	}
	if req.Code != nil {
		word = req.Language
	}
	return cmp.Or(nameOf(word), "program")
}

// nameOf returns the characters of a word that are valid in a name, at most 16.
func nameOf(word string) string {
	word = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '_' {
			return r
		}
		return -1
	}, strings.ToLower(word))
	return word[:min(len(word), 16)]
}

// freeName returns the program's name for a process of a box, with a number appended if that name is taken.
func freeName(ctx context.Context, c *client.Client, id string, req *api.ProcessRequest) (string, error) {
	list, err := c.Processes(ctx, id)
	if err != nil {
		return "", err
	}
	base := programName(req)
	name := base
	for n := 2; slices.ContainsFunc(list, func(p api.Process) bool { return p.ID == name }); n++ {
		name = base + "-" + strconv.Itoa(n)
	}
	return name, nil
}

// onlyProcess returns the name of the only process of a box, or of the only running one.
func onlyProcess(ctx context.Context, c *client.Client, command, id string) (string, error) {
	list, err := c.Processes(ctx, id)
	if err != nil {
		return "", err
	}
	names := make([]string, len(list))
	var running []string
	for i, p := range list {
		names[i] = render.ShellWord(p.ID)
		if p.State != "ended" {
			running = append(running, p.ID)
		}
	}
	switch {
	case len(list) == 1:
		return list[0].ID, nil
	case len(running) == 1:
		return running[0], nil
	case len(list) == 0:
		return "", &usageError{err: fmt.Errorf("%s: box %s has no process", command, render.ShellWord(id)), hint: "boxctl start " + render.ShellWord(id) + " -- PROGRAM starts one"}
	}
	return "", &usageError{err: fmt.Errorf("%s: box %s has several processes: %s", command, render.ShellWord(id), strings.Join(names, ", ")), hint: command + " " + render.ShellWord(id) + " " + names[0]}
}

// withProcess completes the arguments of a command about a process, which may be omitted if the box has only one.
func withProcess(cmd *cobra.Command, c *client.Client, args []string) ([]string, error) {
	if len(args) > 1 {
		return args, nil
	}
	name, err := onlyProcess(cmd.Context(), c, cmd.CommandPath(), args[0])
	return []string{args[0], name}, err
}

// nameArg returns the name from the argument or --name, and refuses two different names.
func nameArg(argument, flag string) (string, error) {
	if argument != "" && flag != "" && argument != flag {
		return "", &usageError{err: errors.New("--name " + render.ShellWord(flag) + ": the name " + render.ShellWord(argument) + " is given too; give one of them")}
	}
	return cmp.Or(argument, flag), nil
}
