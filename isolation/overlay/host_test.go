// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"slices"
	"testing"
)

func TestHostMountsBelowADirectoryAreFound(t *testing.T) {
	t.Parallel()
	const mountinfo = `21 1 0:20 / / ro - tmpfs tmpfs rw
22 21 8:1 /usr /usr ro - ext4 /dev/sda1 rw
23 22 8:2 / /usr/local ro - ext4 /dev/sda2 rw
24 23 8:3 / /usr/local/share ro - ext4 /dev/sda3 rw
25 22 8:4 / /usr/local-other ro - ext4 /dev/sda4 rw
26 22 8:5 / /usr/with\040space\134 ro - ext4 /dev/sda5 rw
27 21 8:6 / /usrx/y ro - ext4 /dev/sda6 rw
28 21 8:7 / /etc/ssl ro - ext4 /dev/sda7 rw
29 23 8:8 / /usr/local ro - ext4 /dev/sda8 rw
30 21 8:9 / /srv/usr/local rw - overlay overlay rw
short
`
	want := []string{"/usr/local", "/usr/local-other", `/usr/with space\`}
	if got := mountedBelow(mountinfo, []tree{{name: "usr"}, {name: "lib64"}}); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := mountedBelow(mountinfo, nil); len(got) != 0 {
		t.Errorf("without a host tree: got %q, want len(got) == 0", got)
	}
}

func TestTreesOfTheHostAreKnownByTheirPlace(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]bool{"/usr": true, "/lib64": true, "/": false, "": false, "/usr/lib": false, "/workspace": false, "/srv": false} {
		if isTree(target) != want {
			t.Errorf("%q: !want = %t, want isTree(target) == want", target, !want)
		}
	}
}
