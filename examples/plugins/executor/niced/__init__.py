"""The executor "niced": processes that leave the cores to others. ``executor="niced:19"`` says how much."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import cloudpickle

from shardex.errors import ArgumentError

JOB = None


def begin(nice, data):
    """Prepare a process: its priority, and the job, which is sent once."""
    global JOB
    os.nice(nice)
    JOB, initializer = cloudpickle.loads(data)
    if initializer is not None:
        initializer()


def run(task):
    """Run the job for one task, in a process."""
    return JOB(task)


class Niced:
    """Runs a job for many tasks: `submit` returns a ticket, `result` waits for it."""

    def __init__(self, job, nice, workers, initializer):
        self.width = workers
        arguments = nice, cloudpickle.dumps((job, initializer))
        self._pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=begin, initargs=arguments)
        self._running = set()

    def submit(self, task):
        ticket = self._pool.submit(run, task)
        self._running.add(ticket)
        return ticket

    def result(self, ticket):
        self._running.discard(ticket)
        return ticket.result()

    def forget(self):
        for ticket in self._running:
            ticket.cancel()
        self._running.clear()

    def close(self):
        self._pool.shutdown(cancel_futures=True)


def start(job, name, workers, initializer):
    """Return the executor that a user named: "niced", or "niced:" and a number."""
    _, _, nice = name.partition(":")
    if not (nice or "10").isdigit():
        raise ArgumentError(f"expected an executor such as 'niced:19', got {name!r}")
    return Niced(job, int(nice or 10), workers or os.cpu_count(), initializer)
