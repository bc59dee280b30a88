// SPDX-License-Identifier: Apache-2.0

// What programs do with the SDK of Scalebox where sandboxes have control groups. Each step prints "ok NAME", or "FAILED NAME" and why.
import assert from 'node:assert/strict'
import { Sandbox } from '@scalebox/sdk'

const steps = []
const step = (name, run) => steps.push([name, run])

let sbx
step('create', async () => { sbx = await Sandbox.create({ timeoutMs: 300_000 }) })
step('getMetrics', async () => {
  await sbx.commands.run('for i in $(seq 20000); do :; done')
  const list = await sbx.getMetrics()
  const m = list.at(-1)
  assert.ok(m.memUsed > 0 && m.memUsed < m.memTotal && m.memTotal === 128 << 20, JSON.stringify(list))
})
step('pause', async () => {
  await sbx.commands.run('sleep 1000 > /dev/null 2>&1 & echo $! > /tmp/kept')
  await sbx.betaPause()
  assert.equal((await sbx.getInfo()).status, 'paused')
})
step('connect to what was paused', async () => {
  sbx = await Sandbox.connect(sbx.sandboxId)
  assert.equal((await sbx.getInfo()).status, 'running')
  assert.equal((await sbx.commands.run('kill -0 $(cat /tmp/kept) && echo lives')).stdout, 'lives\n')
})
step('kill', async () => {
  await sbx.kill()
  assert.equal(await sbx.isRunning(), false)
})

for (const [name, run] of steps) {
  try {
    await run()
    console.log('ok ' + name)
  } catch (e) {
    console.log('FAILED ' + name + ': ' + (e.stack || e))
    if (name === 'create') break
  }
}
process.exit(0)
