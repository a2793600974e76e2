"""Decides what the recovery thread of a subtask does next: FLIP-547's two phases and three processes.

Never: read a file, look into rows, wait.

(TABLE OF STATES to be written here, FLIP-547 4.5.2:)

    phase 1   room, nothing spilled   P1  read, filter, into memory
    phase 1   room, spilled           P3  replay the oldest spilled buffer
    phase 1   no room                 P2  read, filter, spill
    phase 1   all is read             phase 2 (irreversible): tell the subtask (`PhaseOneEnded`)
    phase 2   spilled                 P3  wait for room as long as it takes, replay
    phase 2   nothing spilled         over (irreversible): tell the subtask (`RecoveryEnded`)

What is read in P1 and P2 is the next buffer of the next channel, in the order given (of one pair of old subtasks, input
before output). Filtering and repacking may make no buffer, one or several of what was read; repacked rows wait until a
buffer is full, or the channel's old pair is read to its end. Without a rescale nothing is filtered or repacked.

Follows FLIP-547, section 4.5.
"""
