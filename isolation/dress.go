// SPDX-License-Identifier: Apache-2.0

package isolation

// Dress asks for another hostname of a box in which no program runs yet.
type Dress struct{ Key, Hostname string }

// Validate checks what can be checked without the box.
func (d *Dress) Validate() error {
	if !validHostname(d.Hostname) {
		return &Refusal{"hostname", d.Hostname, "a DNS label: a-z, 0-9 and inner hyphens, at most 63"}
	}
	return nil
}
