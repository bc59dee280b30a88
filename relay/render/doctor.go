// SPDX-License-Identifier: Apache-2.0

package render

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/boxd-dev/boxd/relay/api"
)

// Doctor prints a line for each check.
func Doctor(out io.Writer, d *api.Doctor) error {
	style := styleOf(out)
	t, line := newTable(), strings.NewReplacer("\n", "; ", "\t", " ") // a cell is a single line
	for _, c := range d.Checks {
		fmt.Fprintf(t, "%s\t%s\t%s\n", strings.ToUpper(c.Level), c.Name, line.Replace(c.Detail))
		if c.Hint != "" {
			fmt.Fprintf(t, "\t\thint: %s\n", line.Replace(c.Hint))
		}
	}
	return t.print(out, func(_ int, line string) string {
		if rest, ok := strings.CutPrefix(line, "FAIL"); ok {
			return style.bad("FAIL") + rest
		}
		if rest, ok := strings.CutPrefix(line, "WARN"); ok {
			return style.warn("WARN") + rest
		}
		return line
	})
}

// Family is a family of distributions that share commands.
type Family string

// The families.
const (
	familyDebian Family = "debian"
	familyFedora Family = "fedora"
)

// FamilyOf reads os-release(5). A distribution that is not like Fedora is taken for Debian.
func FamilyOf(release string) Family {
	for line := range strings.Lines(release) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if name != "ID" && name != "ID_LIKE" {
			continue
		}
		for like := range strings.FieldsSeq(strings.Trim(value, `"'`)) {
			if slices.Contains([]string{"fedora", "rhel", "centos"}, like) {
				return familyFedora
			}
		}
	}
	return familyDebian
}

// Fix has the commands that fix a finding, for a root shell, with comments where a person has to choose.
type Fix struct {
	Name     string   `json:"name"`
	Commands []string `json:"commands"`
}

// Fixes returns fixes for all checks that are not ok. Findings with the same commands share a fix.
func Fixes(d *api.Doctor, family Family) []Fix {
	fixes := []Fix{}
	var groups []string  // the commands for cgroups, which limits need
	var without []string // limits that boxes lack, or would lack
	refused := false
	for _, c := range d.Checks {
		if c.Level == "ok" {
			continue
		}
		commands := fixOf(&c, family)
		limit, ok := strings.CutSuffix(c.Name, " limit")
		switch {
		case c.Name == "cgroups":
			groups = commands
		case ok && limit != "workspace" && groups != nil:
			commands = groups
		}
		if ok && (c.Level == "fail" || strings.HasPrefix(c.Detail, "best effort")) {
			without = append(without, fmt.Sprintf("%q", limit))
			refused = refused || c.Level == "fail"
		}
		same := slices.IndexFunc(fixes, func(f Fix) bool { return slices.Equal(f.Commands, commands) })
		if same < 0 {
			fixes = append(fixes, Fix{c.Name, commands})
		} else {
			fixes[same].Name += ", " + c.Name
		}
	}
	if refused {
		fixes = append(fixes, Fix{"or run boxes without these limits", []string{
			dropIn("limits", "limits", "best_effort = ["+strings.Join(without, ", ")+"]"), "systemctl reload boxd.service",
		}})
	}
	return fixes
}

// PrintFixes prints fixes for reading and pasting.
func PrintFixes(out io.Writer, fixes []Fix) error {
	style := styleOf(out)
	var text strings.Builder
	if len(fixes) == 0 {
		text.WriteString("# nothing to fix\n")
	}
	for _, f := range fixes {
		text.WriteString("\n" + style.bold("# "+f.Name) + "\n")
		for _, line := range f.Commands {
			text.WriteString(line + "\n")
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

const restartAll = "systemctl restart boxd-keeper.service boxd.service"

// dropIn returns a command that writes a file to box.toml.d.
func dropIn(name, table, line string) string {
	return fmt.Sprintf(`mkdir -p /etc/boxd/box.toml.d && printf '%%s\n' '[%s]' '%s' >/etc/boxd/box.toml.d/60-%s.toml`, table, line, name)
}

// either returns the command of a family.
func either(family Family, debian, fedora string) string {
	if family == familyFedora {
		return fedora
	}
	return debian
}

func fixOf(c *api.Check, family Family) []string {
	switch c.Name {
	case "kernel":
		return []string{either(family, "apt-get update && apt-get full-upgrade", "dnf upgrade"), "reboot # into Linux 6.1 or later"}
	case "user namespaces":
		return []string{"echo 'user.max_user_namespaces = 10000' >/etc/sysctl.d/60-boxd.conf", "sysctl --system"}
	case "capabilities":
		return []string{"systemctl revert boxd-keeper.service # undo changes of the unit", restartAll}
	case "id ranges":
		return []string{
			"grep . /etc/subuid /etc/subgid # ranges in use",
			dropIn("ids", "ids", "base = NUMBER") + " # a multiple of 65536 outside these ranges", restartAll,
		}
	case "test box":
		return []string{"journalctl -b -n 50 -u boxd.service -u boxd-keeper.service # has the error"}
	case "cgroups":
		if strings.HasPrefix(c.Detail, "unified") {
			return []string{"systemctl start boxd-boxes.service"}
		}
		const v2 = "systemd.unified_cgroup_hierarchy=1"
		return []string{
			either(family, `sed -i 's/^GRUB_CMDLINE_LINUX="/&`+v2+` /' /etc/default/grub && update-grub`, "grubby --update-kernel=ALL --args="+v2), "reboot",
		}
	case "memory limit", "cpu limit", "pids limit", "io limit":
		return []string{
			"cat /sys/fs/cgroup/cgroup.controllers # controllers of this kernel",
			"systemctl start boxd-boxes.service # has the cgroups of boxes",
		}
	case "workspace limit":
		return workspaceFix(c, family)
	case "huge pages":
		const file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
		return []string{"echo advise >" + file, "echo 'w " + file + " - - - - advise' >/etc/tmpfiles.d/boxd-output.conf # at every boot"}
	case "disk":
		return []string{"boxctl ls --all", "boxctl rm BOX # deletes its workspace too", "du -xsh /var/lib/boxd/*"}
	case "systemd scopes":
		return []string{either(family, "apt-get install dbus", "dnf install dbus-broker"), "systemctl start dbus.socket", "systemctl restart boxd.service"}
	}
	if c.Name == "box network" {
		return networkFix(c)
	}
	return []string{"# no command known: " + c.Hint}
}

func networkFix(c *api.Check) []string {
	switch {
	case strings.Contains(c.Hint, "ip_forward"):
		return []string{"echo 'net.ipv4.ip_forward = 1' >/etc/sysctl.d/60-boxd-network.conf # for the whole host", "sysctl --system"}
	case strings.Contains(c.Hint, "modprobe"):
		return []string{"modprobe -a nf_tables veth", "printf '%s\n' nf_tables veth >/etc/modules-load.d/boxd-network.conf"}
	case strings.Contains(c.Hint, "allow packets"):
		return []string{"nft list chains # " + c.Hint}
	}
	return []string{"ip route # blocks in use", dropIn("network", "network", `ipv4 = "BLOCK"`) + " # a free block", restartAll}
}

func workspaceFix(c *api.Check, family Family) []string {
	switch {
	case strings.Contains(c.Hint, "e2fsprogs"):
		return []string{either(family, "apt-get install e2fsprogs", "dnf install e2fsprogs"), restartAll}
	case strings.Contains(c.Hint, "xfsprogs"):
		return []string{either(family, "apt-get install xfsprogs", "dnf install xfsprogs"), restartAll}
	case strings.Contains(c.Hint, "modprobe loop"):
		return []string{"modprobe loop && echo loop >/etc/modules-load.d/boxd.conf", restartAll}
	}
	return []string{dropIn("store", "workspaces", `store_size = "16GiB"`) + " # workspaces in an image file with quotas", restartAll}
}
