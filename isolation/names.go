// SPDX-License-Identifier: Apache-2.0

package isolation

// NameDir holds the files of /etc that differ from box to box. The image has links to them.
const NameDir = "/run/box"

// NameFile is one of them.
type NameFile struct{ Name, Text string }

// NameFiles are the files that have a box's hostname in them.
func NameFiles(hostname string) [2]NameFile {
	return [2]NameFile{
		{"hostname", hostname + "\n"},
		{"hosts", "127.0.0.1\tlocalhost " + hostname + "\n::1\tlocalhost " + hostname + "\n"},
	}
}

// Dress asks for another hostname of a box in which no program runs yet.
type Dress struct{ Key, Hostname string }

// Validate checks what can be checked without the box.
func (d *Dress) Validate() error {
	if !validHostname(d.Hostname) {
		return &Refusal{"hostname", d.Hostname, "a DNS label: a-z, 0-9 and inner hyphens, at most 63"}
	}
	return nil
}
