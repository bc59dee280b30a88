// SPDX-License-Identifier: Apache-2.0

package boxtest

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Lives reports whether a process of the host is alive, and not a zombie.
func Lives(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ") && !strings.Contains(string(stat), ") X ")
}

// ProcessStatus returns the fields of /proc/PID/status of a process of the host, see
// proc_pid_status(5). The words of a value are separated by one blank.
func ProcessStatus(t testing.TB, pid int) map[string]string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		fields[name] = strings.Join(strings.Fields(value), " ")
	}
	return fields
}

// Memory returns a field of ProcessStatus that is a size, such as "VmRSS", in bytes.
func Memory(t testing.TB, pid int, field string) int {
	t.Helper()
	value, n := ProcessStatus(t, pid)[field], 0
	if _, err := fmt.Sscanf(value, "%d kB", &n); err != nil {
		t.Fatalf("%s of process %d is %q: %v", field, pid, value, err)
	}
	return n << 10
}
