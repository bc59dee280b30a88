// SPDX-License-Identifier: Apache-2.0

package seccomp

import (
	"strings"
	"testing"
)

func FuzzCompile(f *testing.F) {
	for _, seed := range []string{
		"",
		"allow read # r",
		"deny socket EPERM # r\nallow bpf # r",
		"hostrw deny open EPERM when arg1 & O_CREAT|__O_TMPFILE != 0 and arg2 & 06000 != 0 # r\nallow open # r",
		"allow socket when arg0 in AF_UNIX 2 0xa and arg1 & 15 == 1 # r\ndeny socket EINVAL # r",
		"hostrw deny openat2 ENOSYS # r\nallow openat2 # r",
		"deny ioctl EPERM when arg1 == 4294967295 # r\nallow ioctl # r",
	} {
		f.Add(seed, false, false)
		f.Add(seed, true, true)
	}
	// One line each, because Go would otherwise spend its time on minimizing long seeds.
	for line := range strings.Lines(Default()) {
		f.Add(line, false, true)
	}
	f.Fuzz(func(t *testing.T, policy string, arm, hostrw bool) {
		target := targets[0]
		if arm {
			target = targets[3]
		}
		target.options.HostWritable = hostrw
		filter, err := Compile(policy, target.options)
		if err != nil {
			return
		}
		checkValid(t, filter)
		rules, err := parse(policy)
		if err != nil {
			t.Fatalf("compiled, but does not parse: %v", err)
		}
		for nr, name := range numbers(t, target.options.Arch) {
			valid := inForce(rules[name], &target.options)
			for _, a := range variants(valid, 50) {
				_, want := expect(valid, a)
				if got := filter.run(call{target.audit, nr, a}); got != want {
					t.Fatalf("%s %#x: verdict %#x, want %#x", name, a, got, want)
				}
			}
		}
	})
}
