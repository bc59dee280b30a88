// SPDX-License-Identifier: Apache-2.0

// What programs do with the SDKs of E2B where sandboxes have control groups. Each step prints "ok NAME", or "FAILED NAME" and why.
import assert from 'node:assert/strict'
import { CommandExitError, Sandbox } from '@e2b/code-interpreter'

const steps = []
const step = (name, run) => steps.push([name, run])
const pause = ms => new Promise(resolve => setTimeout(resolve, ms))
async function until(what, test) {
  for (let i = 0; i < 1800; i++) {
    if (await test()) return
    await pause(50)
  }
  throw new Error('never: ' + what)
}

let sbx, cat
step('create', async () => { sbx = await Sandbox.create({ timeoutMs: 600_000 }) })
step('getMetrics', async () => {
  const busy = await sbx.commands.run('while :; do :; done', { background: true })
  let list
  await until('samples of a busy processor', async () => {
    list = await sbx.getMetrics()
    return list.length >= 2 && list.at(-1).cpuUsedPct > 5
  })
  for (const m of list) assert.ok(m.memUsed > 0 && m.memUsed < m.memTotal && m.memTotal === 128 << 20 && m.timestamp <= new Date(), JSON.stringify(m))
  assert.deepEqual(await sbx.getMetrics({ end: new Date(1000) }), [])
  await busy.kill()
})
step('more memory than it may have', async () => {
  await assert.rejects(sbx.commands.run(`python3 -c 'x = b"x" * (256 << 20)'`), e => e instanceof CommandExitError && /128MiB of memory/.test(e.error ?? e.message))
  assert.equal((await sbx.commands.run('echo alive')).stdout, 'alive\n')
})
step('pause', async () => {
  cat = await sbx.commands.run('cat', { background: true, stdin: true })
  await sbx.runCode('x = 41')
  assert.deepEqual([await sbx.pause(), await sbx.pause()], [true, false])
  assert.equal((await sbx.getInfo()).state, 'paused')
  assert.deepEqual((await Sandbox.list({ query: { state: ['paused'] } }).nextItems()).map(s => s.sandboxId), [sbx.sandboxId])
  assert.equal(await sbx.isRunning(), false)
})
step('connect to what was paused', async () => {
  sbx = await Sandbox.connect(sbx.sandboxId)
  assert.equal((await sbx.getInfo()).state, 'running')
  let out = ''
  const again = await sbx.commands.connect(cat.pid, { onStdout: d => { out += d } })
  await sbx.commands.sendStdin(cat.pid, 'still here\n')
  await sbx.commands.closeStdin(cat.pid)
  assert.equal((await again.wait()).exitCode, 0)
  assert.equal(out, 'still here\n')
  assert.equal((await sbx.runCode('x + 1')).text, '42')
})
step('paused at the end of its time, and resumed by a request', async () => {
  const brief = await Sandbox.create({ timeoutMs: 5_000, lifecycle: { onTimeout: 'pause', autoResume: true } })
  await until('it is paused', async () => (await brief.getInfo()).state === 'paused')
  assert.equal((await brief.commands.run('echo back')).stdout, 'back\n')
  await brief.kill()
})
step('kill', async () => assert.equal(await sbx.kill(), true))

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
